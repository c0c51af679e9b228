"""Triton Inference Server: the names of its metrics, from its user guide (docs/user_guide/metrics.md).

Its counters carry no `_total`, and durations are cumulative microseconds per model and version.
There is no gauge of running requests: the rate of `nv_inference_request_duration_us` is the mean
number of requests in the server (Little's law, L = λW), and what is not pending of it runs.
An ensemble counts its own requests and those of the models it is made of: where ensembles are
served, narrow the selector to the ensemble's `model`. `nv_gpu_utilization` is a ratio, not per cent.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

MICROSECOND_S = 1e-6

TABLE = ServerTable(
    server="triton",
    title="Triton Inference Server",
    since="2.28 (22.11); on by default",
    port=8002,
    completed=ServerMetric(
        names=("nv_inference_request_success",),
        kind="counter",
        plus=("nv_inference_request_failure",),
    ),
    unserved=ServerMetric(names=("nv_inference_request_failure",), kind="counter"),
    waiting=ServerMetric(names=("nv_inference_pending_request_count",), kind="gauge"),
    sojourn_s=ServerMetric(
        names=("nv_inference_request_duration_us",), kind="counter", factor=MICROSECOND_S
    ),
    queue_s=ServerMetric(
        names=("nv_inference_queue_duration_us",), kind="counter", factor=MICROSECOND_S
    ),
    busy=ServerMetric(names=("nv_gpu_utilization",), kind="gauge", across="mean"),
    models=("model",),
)

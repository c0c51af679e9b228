"""TorchServe: the names of its metrics, from https://pytorch.org/serve/metrics.html.

There are no gauges of requests: what waits and runs is told by the sums of times (Little's law).
The inference latency runs from the arrival of a request to its answer, its wait included.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

MICROSECOND_S = 1e-6

TABLE = ServerTable(
    server="torchserve",
    title="TorchServe",
    since="0.8; set `metrics_mode=prometheus`",
    port=8082,
    completed=ServerMetric(names=("ts_inference_requests_total",), kind="counter"),
    sojourn_s=ServerMetric(
        names=("ts_inference_latency_microseconds",), kind="counter", factor=MICROSECOND_S
    ),
    queue_s=ServerMetric(
        names=("ts_queue_latency_microseconds",), kind="counter", factor=MICROSECOND_S
    ),
    busy=ServerMetric(names=("GPUUtilization",), kind="gauge", across="mean", factor=0.01),
)

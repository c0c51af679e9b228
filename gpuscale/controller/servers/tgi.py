"""Text Generation Inference: the names of its metrics, from its documentation (reference/metrics).

Its counters carry no `_total`. `tgi_request_count` counts what arrives; what ended is the sum of
successes and failures.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

TABLE = ServerTable(
    server="tgi",
    title="Text Generation Inference",
    since="1.0; on by default",
    port=80,
    completed=ServerMetric(
        names=("tgi_request_success",), kind="counter", plus=("tgi_request_failure",)
    ),
    waiting=ServerMetric(names=("tgi_queue_size",), kind="gauge"),
    running=ServerMetric(names=("tgi_batch_current_size",), kind="gauge"),
    sojourn_s=ServerMetric(names=("tgi_request_duration_sum",), kind="counter"),
    queue_s=ServerMetric(names=("tgi_request_queue_duration_sum",), kind="counter"),
    prompt_tokens=ServerMetric(names=("tgi_request_input_length_sum",), kind="counter"),
    generation_tokens=ServerMetric(names=("tgi_request_generated_tokens_sum",), kind="counter"),
)

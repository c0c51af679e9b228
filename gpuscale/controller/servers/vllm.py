"""vLLM: the names of its metrics, from https://docs.vllm.ai/en/latest/usage/metrics.html.

With data parallelism there is one series per `engine`: counts add up, the KV cache is averaged.
vLLM hides a metric one minor release after deprecating it and removes it in the next, so old
names stay here as aliases.
"""

from gpuscale.controller.domain import ServerMetric, ServerTable

TABLE = ServerTable(
    server="vllm",
    port=8000,
    # By finished_reason: stop, length, abort, error; aborted requests are demand too.
    completed=ServerMetric(names=("vllm:request_success_total",), kind="counter"),
    waiting=ServerMetric(names=("vllm:num_requests_waiting",), kind="gauge"),
    running=ServerMetric(names=("vllm:num_requests_running",), kind="gauge"),
    kv_fraction=ServerMetric(
        names=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        kind="gauge",
        across="mean",
    ),
    queue_s=ServerMetric(names=("vllm:request_queue_time_seconds_sum",), kind="counter"),
)

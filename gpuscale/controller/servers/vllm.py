"""vLLM: the names of its metrics, from https://docs.vllm.ai/en/latest/usage/metrics.html.

With data parallelism there is one series per `engine`: counts add up, the KV cache is averaged.
vLLM hides a metric one minor release after deprecating it and removes it in the next, so old
names stay here as aliases. Inside Ray Serve it is the server `ray-serve` that counts requests.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

TABLE = ServerTable(
    server="vllm",
    title="vLLM",
    since="0.6; on by default",
    port=8000,
    # By finished_reason: stop, length, abort, error; aborted requests are demand too.
    completed=ServerMetric(names=("vllm:request_success_total",), kind="counter"),
    unserved=ServerMetric(
        names=("vllm:request_success_total",),
        kind="counter",
        where=(("finished_reason", "abort"),),
    ),
    waiting=ServerMetric(names=("vllm:num_requests_waiting",), kind="gauge"),
    running=ServerMetric(names=("vllm:num_requests_running",), kind="gauge"),
    sojourn_s=ServerMetric(names=("vllm:e2e_request_latency_seconds_sum",), kind="counter"),
    queue_s=ServerMetric(names=("vllm:request_queue_time_seconds_sum",), kind="counter"),
    kv_fraction=ServerMetric(
        names=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), kind="gauge", across="mean"
    ),
    prompt_tokens=ServerMetric(names=("vllm:prompt_tokens_total",), kind="counter"),
    generation_tokens=ServerMetric(names=("vllm:generation_tokens_total",), kind="counter"),
)

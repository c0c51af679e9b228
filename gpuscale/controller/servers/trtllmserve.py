"""trtllm-serve: the names of its metrics, from TensorRT-LLM's metrics collector.

Served at /prometheus/metrics. Older releases wrote the prefix with a colon, and have no gauges:
what runs is then told by the latency histogram (Little's law).
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable


def _names(suffix: str) -> tuple[str, ...]:
    return (f"trtllm_{suffix}", f"trtllm:{suffix}")


TABLE = ServerTable(
    server="trtllm-serve",
    title="trtllm-serve",
    since="1.1; set `return_perf_metrics: true`",
    port=8000,
    path="/prometheus/metrics",
    completed=ServerMetric(names=_names("request_success_total"), kind="counter"),
    waiting=ServerMetric(names=_names("num_requests_waiting"), kind="gauge"),
    running=ServerMetric(names=_names("num_requests_running"), kind="gauge"),
    sojourn_s=ServerMetric(names=_names("e2e_request_latency_seconds_sum"), kind="counter"),
    queue_s=ServerMetric(names=_names("request_queue_time_seconds_sum"), kind="counter"),
    kv_fraction=ServerMetric(names=_names("kv_cache_utilization"), kind="gauge", across="mean"),
)

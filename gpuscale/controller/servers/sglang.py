"""SGLang: the names of its metrics, from https://docs.sglang.io/references/production_metrics.html.

Every rank of a tensor- or pipeline-parallel engine writes its own copy of a gauge: the largest
counts, and copies are never added. Engines of data parallelism differ in `dp_rank`, and add up.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

TABLE = ServerTable(
    server="sglang",
    title="SGLang",
    since="0.4; start it with `--enable-metrics`",
    port=30000,
    completed=ServerMetric(
        names=("sglang:num_requests_total",),
        kind="counter",
        plus=("sglang:num_aborted_requests_total",),
    ),
    waiting=ServerMetric(
        names=("sglang:num_queue_reqs",),
        kind="gauge",
        # Where prefill and decode are apart, requests wait for room in the other half too.
        plus=("sglang:num_prefill_prealloc_queue_reqs", "sglang:num_decode_prealloc_queue_reqs"),
    ),
    running=ServerMetric(names=("sglang:num_running_reqs",), kind="gauge"),
    sojourn_s=ServerMetric(names=("sglang:e2e_request_latency_seconds_sum",), kind="counter"),
    queue_s=ServerMetric(names=("sglang:queue_time_seconds_sum",), kind="counter"),
    kv_fraction=ServerMetric(names=("sglang:token_usage",), kind="gauge", across="mean"),
    prompt_tokens=ServerMetric(names=("sglang:prompt_tokens_total",), kind="counter"),
    generation_tokens=ServerMetric(names=("sglang:generation_tokens_total",), kind="counter"),
    startup_s=ServerMetric(names=("sglang:engine_startup_time",), kind="gauge", across="max"),
    models=("model_name", "name"),
    copies=("tp_rank", "pp_rank", "moe_ep_rank", "pid"),
)

"""llama.cpp's server: the names of its metrics, from its README (tools/server).

It counts tokens, not requests, so its demand, capacity and answers are in generated tokens per
second. Waiting requests want tokens too: demand is what is generated, times all requests over those
that run. `requests_processing` is bounded by the slots.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

TABLE = ServerTable(
    server="llama-cpp",
    title="llama.cpp server",
    since="b3000; start it with `--metrics`",
    port=8080,
    unit="tokens",
    completed=ServerMetric(names=("llamacpp:tokens_predicted_total",), kind="counter"),
    waiting=ServerMetric(names=("llamacpp:requests_deferred",), kind="gauge"),
    running=ServerMetric(names=("llamacpp:requests_processing",), kind="gauge"),
    kv_fraction=ServerMetric(names=("llamacpp:kv_cache_usage_ratio",), kind="gauge", across="mean"),
    prompt_tokens=ServerMetric(names=("llamacpp:prompt_tokens_total",), kind="counter"),
    generation_tokens=ServerMetric(names=("llamacpp:tokens_predicted_total",), kind="counter"),
)

"""NVIDIA NIM for LLMs: the names of its metrics, from its observability page, at /v1/metrics.

From 2.x on the page is the engine's own (vLLM's or SGLang's names); 1.x has bare names.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

TABLE = ServerTable(
    server="nim",
    title="NVIDIA NIM for LLMs",
    since="1.0; on by default",
    port=8000,
    path="/v1/metrics",
    completed=ServerMetric(
        names=(
            "vllm:request_success_total",
            "sglang:num_requests_total",
            "request_success_total",
            "request_finish_total",
        ),
        kind="counter",
        plus=("sglang:num_aborted_requests_total", "request_failure_total"),
    ),
    waiting=ServerMetric(
        names=("vllm:num_requests_waiting", "sglang:num_queue_reqs", "num_requests_waiting"),
        kind="gauge",
    ),
    running=ServerMetric(
        names=("vllm:num_requests_running", "sglang:num_running_reqs", "num_requests_running"),
        kind="gauge",
    ),
    sojourn_s=ServerMetric(
        names=(
            "vllm:e2e_request_latency_seconds_sum",
            "sglang:e2e_request_latency_seconds_sum",
            "e2e_request_latency_seconds_sum",
        ),
        kind="counter",
    ),
    queue_s=ServerMetric(
        names=("vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum"),
        kind="counter",
    ),
    kv_fraction=ServerMetric(
        names=("vllm:kv_cache_usage_perc", "sglang:token_usage", "gpu_cache_usage_perc"),
        kind="gauge",
        across="mean",
    ),
    prompt_tokens=ServerMetric(
        names=("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "prompt_tokens_total"),
        kind="counter",
    ),
    generation_tokens=ServerMetric(
        names=(
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "generation_tokens_total",
        ),
        kind="counter",
    ),
    copies=("tp_rank", "pp_rank", "moe_ep_rank", "pid"),
)

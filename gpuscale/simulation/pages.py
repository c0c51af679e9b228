"""Metrics pages of simulated pods, under the names of the servers they stand for.

Only what a scaler reads is there: counters of ended requests, gauges of what runs and waits, and
the cumulative times. The names are those of the servers' own documentation.
"""

from collections.abc import Callable, Mapping

from gpuscale.simulation.cluster import SimulatedPod

KV_REQUESTS = 64.0
"""Requests whose tokens fill a simulated KV cache."""
MICROSECONDS = 1e6


def vllm_page(pod: SimulatedPod, model: str) -> str:
    """A vLLM pod's page in the Prometheus text format."""
    labels = f'{{model_name="{model}",engine="0"}}'
    finished = f'{{model_name="{model}",engine="0",finished_reason="stop"}}'
    aborted = f'{{model_name="{model}",engine="0",finished_reason="abort"}}'
    kv = min(1.0, pod.running / KV_REQUESTS)
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {pod.running:.3f}\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        f"vllm:num_requests_waiting{labels} {pod.waiting:.3f}\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        f"vllm:kv_cache_usage_perc{labels} {kv:.4f}\n"
        "# TYPE vllm:request_success_total counter\n"
        f"vllm:request_success_total{finished} {pod.completed:.3f}\n"
        f"vllm:request_success_total{aborted} {pod.lost:.3f}\n"
        "# TYPE vllm:request_queue_time_seconds histogram\n"
        f'vllm:request_queue_time_seconds_bucket{{model_name="{model}",engine="0",le="+Inf"}} {pod.completed:.3f}\n'
        f"vllm:request_queue_time_seconds_sum{labels} {pod.queue_seconds:.3f}\n"
        f"vllm:request_queue_time_seconds_count{labels} {pod.completed:.3f}\n"
    )


def triton_page(pod: SimulatedPod, model: str) -> str:
    """A Triton pod's page in the Prometheus text format."""
    labels = f'{{model="{model}",version="1"}}'
    sojourn = (pod.service_seconds + pod.queue_seconds) * MICROSECONDS
    return (
        "# TYPE nv_inference_request_success counter\n"
        f"nv_inference_request_success{labels} {pod.completed:.3f}\n"
        "# TYPE nv_inference_request_failure counter\n"
        f'nv_inference_request_failure{{model="{model}",version="1",reason="CANCELED"}} {pod.lost:.3f}\n'
        "# TYPE nv_inference_pending_request_count gauge\n"
        f"nv_inference_pending_request_count{labels} {pod.waiting:.3f}\n"
        "# TYPE nv_inference_request_duration_us counter\n"
        f"nv_inference_request_duration_us{labels} {sojourn:.0f}\n"
        "# TYPE nv_inference_queue_duration_us counter\n"
        f"nv_inference_queue_duration_us{labels} {pod.queue_seconds * MICROSECONDS:.0f}\n"
    )


PAGES: Mapping[str, Callable[[SimulatedPod, str], str]] = {
    "vllm": vllm_page,
    "triton": triton_page,
}
"""By the name of the server, as in a policy's `server`."""

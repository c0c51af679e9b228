"""Metrics pages of every inference server that has a table, as its current and its older releases write them.

One `Load` is one pod's truth; each page says it in that server's own names, labels and units, with
the lines around it that real pages have: comments, histograms, other families, several models.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a pod has done since its start, and what is in it now."""

    done: float
    failed: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    queue_s: float = 0.0
    sojourn_s: float = 0.0
    kv: float = 0.0
    prompt: float = 0.0
    generated: float = 0.0


Lines = Iterable[str]


def _text(*groups: Lines) -> bytes:
    return "\n".join(line for group in groups for line in group).encode() + b"\n"


def _family(name: str, kind: str, *series: str) -> list[str]:
    return [f"# HELP {name} What it counts.", f"# TYPE {name} {kind}", *series]


def _histogram(name: str, labels: str, total: float, count: float, suffix: str = "") -> list[str]:
    """A histogram of two buckets; `suffix` follows the labels inside the braces."""
    inside = ",".join(part for part in (labels, suffix) if part)
    comma = "," if inside else ""
    return [
        f"# HELP {name} A distribution.",
        f"# TYPE {name} histogram",
        f'{name}_bucket{{{inside}{comma}le="1.0"}} {count / 2}',
        f'{name}_bucket{{{inside}{comma}le="+Inf"}} {count}',
        f"{name}_sum{{{inside}}} {total!r}",
        f"{name}_count{{{inside}}} {count!r}",
    ]


PROCESS = _family("process_resident_memory_bytes", "gauge", "process_resident_memory_bytes 6.2e+09")


def vllm(load: Load, *, kv: str = "vllm:kv_cache_usage_perc") -> bytes:
    """Two engines of data parallelism that share the load evenly."""
    out: list[str] = []
    engines = [f'engine="{i}",model_name="acme/chat-8b"' for i in (0, 1)]

    def both(name: str, kind: str, value: float, more: str = "") -> None:
        out.extend(_family(name, kind, *(f"{name}{{{e}{more}}} {value}" for e in engines)))

    both("vllm:num_requests_running", "gauge", load.running / 2)
    both("vllm:num_requests_waiting", "gauge", load.waiting / 2)
    both("vllm:num_requests_waiting_by_reason", "gauge", load.waiting / 2, ',reason="capacity"')
    both(kv, "gauge", load.kv)
    both("vllm:prompt_tokens_total", "counter", load.prompt / 2)
    both("vllm:generation_tokens_total", "counter", load.generated / 2)
    both("vllm:request_success_total", "counter", load.done / 2, ',finished_reason="stop"')
    both("vllm:request_success_total", "counter", load.failed / 2, ',finished_reason="abort"')
    for engine in engines:
        out += _histogram(
            "vllm:request_queue_time_seconds", engine, load.queue_s / 2, load.done / 2
        )
        out += _histogram(
            "vllm:e2e_request_latency_seconds", engine, load.sojourn_s / 2, load.done / 2
        )
    return _text(PROCESS, out)


def sglang(load: Load, *, label: str = "model_name") -> bytes:
    """Tensor parallelism of two: every rank writes a copy of every gauge."""
    model = f'{label}="acme/chat-8b"'
    ranks = [f'engine_type="unified",{model},pp_rank="0",tp_rank="{i}"' for i in (0, 1)]
    out: list[str] = []
    for name, value in (
        ("sglang:num_running_reqs", load.running),
        ("sglang:num_queue_reqs", load.waiting),
        ("sglang:num_prefill_prealloc_queue_reqs", 0.0),
        ("sglang:token_usage", load.kv),
        ("sglang:engine_startup_time", 41.5),
    ):
        out += _family(name, "gauge", *(f"{name}{{{rank}}} {value}" for rank in ranks))
    for name, value in (
        ("sglang:num_requests_total", load.done),
        ("sglang:num_aborted_requests_total", load.failed),
        ("sglang:prompt_tokens_total", load.prompt),
        ("sglang:generation_tokens_total", load.generated),
    ):
        out += _family(name, "counter", f"{name}{{{model}}} {value}")
    out += _histogram("sglang:e2e_request_latency_seconds", model, load.sojourn_s, load.done)
    out += _histogram("sglang:queue_time_seconds", ranks[0], load.queue_s, load.done)
    return _text(out)


def tgi(load: Load) -> bytes:
    """One model, no labels; counters without _total."""
    return _text(
        _family(
            "tgi_request_count",
            "counter",
            f"tgi_request_count {load.done + load.failed + load.waiting + load.running}",
        ),
        _family("tgi_request_success", "counter", f"tgi_request_success {load.done}"),
        _family(
            "tgi_request_failure",
            "counter",
            f'tgi_request_failure{{err="overloaded"}} {load.failed}',
        ),
        _family("tgi_queue_size", "gauge", f"tgi_queue_size {load.waiting}"),
        _family("tgi_batch_current_size", "gauge", f"tgi_batch_current_size {load.running}"),
        _family("tgi_batch_current_max_tokens", "gauge", "tgi_batch_current_max_tokens 16000"),
        _histogram("tgi_request_duration", "", load.sojourn_s, load.done),
        _histogram("tgi_request_queue_duration", "", load.queue_s, load.done),
        _histogram("tgi_request_input_length", "", load.prompt, load.done),
        _histogram("tgi_request_generated_tokens", "", load.generated, load.done),
    )


def trtllm_serve(load: Load, *, prefix: str = "trtllm_", gauges: bool = True) -> bytes:
    """TensorRT-LLM's own server; before it had gauges, only counters and histograms."""
    labels = 'engine_type="trtllm",model_name="acme/chat-8b"'
    out = _family(
        f"{prefix}request_success_total",
        "counter",
        f'{prefix}request_success_total{{{labels},finished_reason="stop"}} {load.done}',
        f'{prefix}request_success_total{{{labels},finished_reason="cancelled"}} {load.failed}',
    )
    for name, value in (
        ("num_requests_running", load.running),
        ("num_requests_waiting", load.waiting),
        ("kv_cache_utilization", load.kv),
    ):
        if gauges:
            out += _family(f"{prefix}{name}", "gauge", f"{prefix}{name}{{{labels}}} {value}")
    out += _histogram(f"{prefix}e2e_request_latency_seconds", labels, load.sojourn_s, load.done)
    out += _histogram(f"{prefix}request_queue_time_seconds", labels, load.queue_s, load.done)
    return _text(out)


def nim(load: Load) -> bytes:
    """NIM 1.x: bare names."""
    labels = 'model_name="acme/chat-8b"'
    out: list[str] = []
    for name, kind, value in (
        ("num_requests_running", "gauge", load.running),
        ("num_requests_waiting", "gauge", load.waiting),
        ("num_request_max", "gauge", 256.0),
        ("gpu_cache_usage_perc", "gauge", load.kv),
        ("prompt_tokens_total", "counter", load.prompt),
        ("generation_tokens_total", "counter", load.generated),
        ("request_success_total", "counter", load.done),
        ("request_failure_total", "counter", load.failed),
    ):
        out += _family(name, kind, f"{name}{{{labels}}} {value}")
    out += _family(
        "request_finish_total",
        "counter",
        f'request_finish_total{{{labels},finished_reason="stop"}} {load.done}',
    )
    out += _histogram("e2e_request_latency_seconds", labels, load.sojourn_s, load.done)
    return _text(out)


def triton(load: Load) -> bytes:
    """Two models on one page, which share the load; microseconds."""
    out: list[str] = []
    models = [f'model="{name}",version="1"' for name in ("resnet50", "vit")]
    for name, kind, value in (
        ("nv_inference_request_success", "counter", load.done),
        ("nv_inference_count", "counter", load.done * 4),
        ("nv_inference_exec_count", "counter", load.done),
        ("nv_inference_request_duration_us", "counter", load.sojourn_s * 1e6),
        ("nv_inference_queue_duration_us", "counter", load.queue_s * 1e6),
        ("nv_inference_pending_request_count", "gauge", load.waiting),
    ):
        out += _family(name, kind, *(f"{name}{{{m}}} {value / 2}" for m in models))
    failures = [
        f'nv_inference_request_failure{{{m},reason="{reason}"}} {load.failed / 4}'
        for m in models
        for reason in ("CANCELED", "BACKEND")
    ]
    out += _family("nv_inference_request_failure", "counter", *failures)
    out += _family(
        "nv_gpu_utilization",
        "gauge",
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5',
        'nv_gpu_utilization{gpu_uuid="GPU-2"} 0.7',
    )
    return _text(out)


def triton_trtllm(load: Load) -> bytes:
    """An ensemble of three, of which only the engine's model is read; batch statistics by type."""
    out: list[str] = []
    models = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")
    for name, kind, value in (
        ("nv_inference_request_success", "counter", load.done),
        ("nv_inference_request_duration_us", "counter", load.sojourn_s * 1e6),
        ("nv_inference_queue_duration_us", "counter", load.queue_s * 1e6),
        ("nv_inference_pending_request_count", "gauge", 0.0),
    ):
        out += _family(name, kind, *(f'{name}{{model="{m}",version="1"}} {value}' for m in models))
    out += _family(
        "nv_inference_request_failure",
        "counter",
        *(
            f'nv_inference_request_failure{{model="{m}",reason="OTHER",version="1"}} {load.failed}'
            for m in models
        ),
    )
    counts = {"waiting": load.waiting, "scheduled": load.running, "context": 1.0, "max": 512.0}
    counts["active"] = load.waiting + load.running
    out += _family(
        "nv_trt_llm_request_metrics",
        "gauge",
        *(
            f'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{k}",version="1"}} {v}'
            for k, v in counts.items()
        ),
    )
    blocks = {"fraction": load.kv, "used": load.kv * 1000, "max": 1000.0, "tokens_per": 64.0}
    out += _family(
        "nv_trt_llm_kv_cache_block_metrics",
        "gauge",
        *(
            "nv_trt_llm_kv_cache_block_metrics"
            f'{{kv_cache_block_type="{k}",model="tensorrt_llm",version="1"}} {v}'
            for k, v in blocks.items()
        ),
    )
    return _text(out)


def torchserve(load: Load) -> bytes:
    """Labels end in a comma, as its Java client writes them; per cent, microseconds."""
    labels = 'uuid="1f6b",model_name="vit",model_version="default",hostname="pod-0",'
    return _text(
        [
            "# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count",
            "# TYPE ts_inference_requests_total counter",
            f"ts_inference_requests_total{{{labels}}} {load.done}",
            "# TYPE ts_inference_latency_microseconds counter",
            f"ts_inference_latency_microseconds{{{labels}}} {load.sojourn_s * 1e6}",
            "# TYPE ts_queue_latency_microseconds counter",
            f"ts_queue_latency_microseconds{{{labels}}} {load.queue_s * 1e6}",
            "# TYPE QueueTime gauge",
            'QueueTime{Level="Host",Hostname="pod-0",} 12.0',
            "# TYPE GPUUtilization gauge",
            'GPUUtilization{Level="Host",DeviceId="0",Hostname="pod-0",} 60.0',
            "# TYPE Requests2XX counter",
            f'Requests2XX{{Level="Host",Hostname="pod-0",}} {load.done}',
        ]
    )


def tf_serving(load: Load, *, counted: bool = True) -> bytes:
    """Names that begin with a colon; some images lack request_count."""
    ok, error = 'model_name="half",status="OK"', 'model_name="half",status="INTERNAL"'
    name = ":tensorflow:serving:"
    count = _family(
        f"{name}request_count",
        "counter",
        f"{name}request_count{{{ok}}} {load.done}",
        f"{name}request_count{{{error}}} {load.failed}",
    )
    ended = load.done + load.failed
    labels = 'model_name="half",API="Predict",entrypoint="REST"'
    return _text(
        count if counted else [],
        _histogram(f"{name}request_latency", labels, load.sojourn_s * 1e6, ended),
        _histogram(f"{name}runtime_latency", labels, load.sojourn_s * 0.8e6, ended),
        _histogram(f"{name}batching_session:queuing_latency", "", load.queue_s * 1e6, ended),
    )


def ray_serve(load: Load) -> bytes:
    """Two replicas of one deployment on one node, and the router's queue."""
    app = 'application="app",deployment="Chat"'
    replicas = [f'{app},replica="r{i}",NodeAddress="10.0.0.7",SessionName="s1"' for i in (0, 1)]
    out: list[str] = []
    for name, kind, value in (
        ("ray_serve_deployment_request_counter_total", "counter", load.done),
        ("ray_serve_deployment_error_counter_total", "counter", load.failed),
        ("ray_serve_replica_processing_queries", "gauge", load.running),
    ):
        out += _family(name, kind, *(f"{name}{{{r}}} {value / 2}" for r in replicas))
    for replica in replicas:
        out += _histogram(
            "ray_serve_deployment_processing_latency_ms",
            replica,
            load.sojourn_s * 1000 / 2,
            load.done / 2,
        )
    router = f'{app},handle="h1",actor_id="a1",NodeAddress="10.0.0.7"'
    out += _family(
        "ray_serve_deployment_queued_queries",
        "gauge",
        f"ray_serve_deployment_queued_queries{{{router}}} {load.waiting}",
    )
    return _text(out)


def llama_cpp(load: Load) -> bytes:
    """Tokens, and no request is ever counted."""
    return _text(
        _family(
            "llamacpp:prompt_tokens_total", "counter", f"llamacpp:prompt_tokens_total {load.prompt}"
        ),
        _family(
            "llamacpp:tokens_predicted_total",
            "counter",
            f"llamacpp:tokens_predicted_total {load.generated}",
        ),
        _family(
            "llamacpp:predicted_tokens_seconds", "gauge", "llamacpp:predicted_tokens_seconds 41"
        ),
        _family(
            "llamacpp:requests_processing", "gauge", f"llamacpp:requests_processing {load.running}"
        ),
        _family(
            "llamacpp:requests_deferred", "gauge", f"llamacpp:requests_deferred {load.waiting}"
        ),
        _family(
            "llamacpp:kv_cache_usage_ratio", "gauge", f"llamacpp:kv_cache_usage_ratio {load.kv}"
        ),
    )


PAGES: Mapping[str, Callable[[Load], bytes]] = {
    "vllm": vllm,
    "sglang": sglang,
    "tgi": tgi,
    "trtllm-serve": trtllm_serve,
    "nim": nim,
    "triton": triton,
    "triton-trtllm": triton_trtllm,
    "torchserve": torchserve,
    "tf-serving": tf_serving,
    "ray-serve": ray_serve,
    "llama-cpp": llama_cpp,
}
"""By the name of the server, as its present releases write them."""


def _old_kv(load: Load) -> bytes:
    return vllm(load, kv="vllm:gpu_cache_usage_perc")


def _old_label(load: Load) -> bytes:
    return sglang(load, label="name")


def _colon(load: Load) -> bytes:
    return trtllm_serve(load, prefix="trtllm:", gauges=False)


def _uncounted(load: Load) -> bytes:
    return tf_serving(load, counted=False)


def _underscored(load: Load) -> bytes:
    page = tf_serving(load).decode()
    return page.replace(":tensorflow:serving:batching_session:", "_tensorflow_serving_batching_session_").replace(":tensorflow:serving:", "_tensorflow_serving_").encode()  # fmt: skip


def _unsuffixed(load: Load) -> bytes:
    return ray_serve(load).replace(b"request_counter_total", b"request_counter")


OLD: tuple[tuple[str, Callable[[Load], bytes]], ...] = (
    ("vllm", _old_kv),
    ("sglang", _old_label),
    ("trtllm-serve", _colon),
    ("nim", vllm),
    ("nim", sglang),
    ("tf-serving", _uncounted),
    ("tf-serving", _underscored),
    ("ray-serve", _unsuffixed),
)
"""(server, page) of other releases: older names, and NIM 2.x with its engine's own."""

"""TensorRT-LLM in Triton: the in-flight batcher's own statistics beside Triton's counters.

Names from the backend's documentation (docs/source/... "Triton Metrics" of tensorrtllm_backend).
Its templates serve an ensemble of pre-processing, engine and post-processing, each of which counts
every request; the engine's model is called `tensorrt_llm` in all of them, and alone is read.
"""

from gpuscale.controller.servertable import ServerMetric, ServerTable

MICROSECOND_S = 1e-6
ENGINE = ("model", "tensorrt_llm")

TABLE = ServerTable(
    server="triton-trtllm",
    title="TensorRT-LLM backend in Triton",
    since="0.7 (23.12); on by default",
    port=8002,
    completed=ServerMetric(
        names=("nv_inference_request_success",),
        kind="counter",
        plus=("nv_inference_request_failure",),
        where=(ENGINE,),
    ),
    waiting=ServerMetric(
        names=("nv_trt_llm_request_metrics",), kind="gauge", where=(("request_type", "waiting"),)
    ),
    running=ServerMetric(
        names=("nv_trt_llm_request_metrics",), kind="gauge", where=(("request_type", "scheduled"),)
    ),
    sojourn_s=ServerMetric(
        names=("nv_inference_request_duration_us",),
        kind="counter",
        factor=MICROSECOND_S,
        where=(ENGINE,),
    ),
    queue_s=ServerMetric(
        names=("nv_inference_queue_duration_us",),
        kind="counter",
        factor=MICROSECOND_S,
        where=(ENGINE,),
    ),
    kv_fraction=ServerMetric(
        names=("nv_trt_llm_kv_cache_block_metrics",),
        kind="gauge",
        across="mean",
        where=(("kv_cache_block_type", "fraction"),),
    ),
    busy=ServerMetric(names=("nv_gpu_utilization",), kind="gauge", across="mean"),
    models=("model",),
)

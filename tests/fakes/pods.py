"""What an inference pod does and what its metrics page says of it: a fluid queue, and the pages of vLLM and Triton.

Requests arrive at the pod's share of the fleet's demand, at most `slots` of them run at a time,
each for `service_s`; the others wait. Counters, gauges and duration sums all come from that one
state, in whole requests, so that completed + running + waiting is exactly what has arrived.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["vllm", "triton"]
Fault = Literal["none", "error", "hang", "nan", "empty"]
FAULTS: tuple[Fault, ...] = ("none", "error", "hang", "nan", "empty")
DemandFunction = Callable[[float], float]
"""Seconds since the fleet's start -> requests per second of the whole fleet."""

STEP_S = 0.02
"""Resolution of the fluid queue; far below any service time used here."""

STEPS_MAX = 500_000
"""A pod that nobody read for hours is not worth more than this."""


def demand_of(spec: str) -> DemandFunction:
    """A demand function from its name: `constant:R`, `sine:MEAN,AMPLITUDE,PERIOD_S`, `ramp:LOW,HIGH,PERIOD_S,RAMP_S`.

    The ramp repeats: LOW for the first half of each period, then up to HIGH within RAMP_S, HIGH
    until the period ends.
    """
    name, _, rest = spec.partition(":")
    numbers = [float(part) for part in rest.split(",")]
    if name == "constant":
        (rate,) = numbers
        return lambda t: rate
    if name == "sine":
        mean, amplitude, period_s = numbers
        return lambda t: max(0.0, mean + amplitude * math.sin(2 * math.pi * t / period_s))
    if name == "ramp":
        low, high, period_s, ramp_s = numbers

        def ramp(t: float) -> float:
            into = t % period_s - period_s / 2
            return low if into < 0 else low + (high - low) * min(1.0, into / ramp_s)

        return ramp
    raise ValueError(f"no demand is called {name!r}: use constant, sine or ramp")


@dataclass(slots=True, kw_only=True)
class Pod:
    """One replica: a fluid queue in whole requests, advanced to the time that is asked for."""

    name: str
    slots: int
    service_s: float
    began_at: float
    gauges_lag_s: float = 0.0
    """Gauges read 0 for this long after a start, as vLLM's do."""
    fault: Fault = "none"
    arrived: float = 0.0
    ended: float = 0.0
    waited_s: float = 0.0
    sojourn_s: float = 0.0
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.began_at

    def advance(self, now: float, rate: DemandFunction) -> None:
        """Serve until `now`, with `rate(t)` requests per second arriving at this pod."""
        steps = min(STEPS_MAX, int((now - self.at) / STEP_S))
        for _ in range(steps):
            self.arrived += rate(self.at) * STEP_S
            inside = self.arrived - self.ended
            running = min(inside, float(self.slots))
            self.ended += min(inside, running / self.service_s * STEP_S)
            self.waited_s += (inside - running) * STEP_S
            self.sojourn_s += inside * STEP_S
            self.at += STEP_S

    def restart(self, now: float) -> None:
        """A new process: every counter at 0, what was inside is lost."""
        self.arrived = self.ended = self.waited_s = self.sojourn_s = 0.0
        self.began_at = self.at = now

    @property
    def completed(self) -> int:
        return int(self.ended)

    @property
    def inside(self) -> int:
        return int(self.arrived) - self.completed

    @property
    def gauges(self) -> tuple[int, int]:
        """(running, waiting) as the page shows them."""
        if self.at - self.began_at < self.gauges_lag_s:
            return 0, 0
        running = min(self.inside, self.slots)
        return running, self.inside - running


# ---------------------------------------------------------------- pages


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[str, dict[str, str], float]]
) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    lines += [f"{sample}{_labels(labels)} {value!r}" for sample, labels, value in samples]
    return lines


def _histogram(
    name: str,
    text: str,
    labels: dict[str, str],
    bounds: Sequence[float],
    *,
    total: float,
    count: int,
) -> list[str]:
    mean = total / count if count else 0.0
    samples = [
        (f"{name}_bucket", {"le": str(bound), **labels}, float(count if mean <= bound else 0))
        for bound in (*bounds, math.inf)
    ]
    samples = [
        (sample, {**of, "le": "+Inf" if of["le"] == "inf" else of["le"]}, value)
        for sample, of, value in samples
    ]
    samples += [(f"{name}_count", labels, float(count)), (f"{name}_sum", labels, total)]
    return _family(name, "histogram", text, samples)


SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
LATENCIES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


def _process(pod: Pod) -> list[str]:
    cpu_s = pod.at - pod.began_at
    values = (
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", 4.1e10),
        ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", 6.2e9),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            pod.began_at,
        ),
        ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent.", cpu_s),
        ("process_open_fds", "gauge", "Number of open file descriptors.", 96.0),
    )
    return [
        line
        for name, kind, text, value in values
        for line in (f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value!r}")
    ]


def vllm_page(pod: Pod, *, model: str = "example/chat-8b", engines: int = 1) -> str:
    """The page of a vLLM server; with several engines (data parallelism) one series each."""
    lines = _process(pod)
    running, waiting = pod.gauges
    nan = pod.fault == "nan"

    def shares(total: int) -> list[float]:
        parts = [total // engines + (1 if i < total % engines else 0) for i in range(engines)]
        return [math.nan if nan else float(part) for part in parts]

    def gauge(name: str, text: str, values: Sequence[float]) -> None:
        series = [(name, {"engine": str(i), "model_name": model}, v) for i, v in enumerate(values)]
        lines.extend(_family(name, "gauge", text, series))

    def counter(name: str, text: str, values: Sequence[float]) -> None:
        series = [
            (f"{name}_total", {"engine": str(i), "model_name": model}, v)
            for i, v in enumerate(values)
        ]
        lines.extend(_family(f"{name}_total", "counter", text, series))

    gauge("vllm:num_requests_running", "Number of requests in model execution.", shares(running))
    gauge("vllm:num_requests_waiting", "Number of requests waiting to run.", shares(waiting))
    used = math.nan if nan else min(1.0, running / pod.slots)
    gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means full.", [used] * engines)
    counter("vllm:num_preemptions", "Number of preemptions.", shares(0))
    counter("vllm:prompt_tokens", "Number of prefill tokens.", shares(pod.completed * 420))
    counter("vllm:generation_tokens", "Number of generated tokens.", shares(pod.completed * 180))
    counter("vllm:prefix_cache_queries", "Prefix cache queries.", shares(pod.completed * 420))
    counter("vllm:prefix_cache_hits", "Prefix cache hits.", shares(pod.completed * 100))
    success = []
    for engine, count in enumerate(shares(pod.completed)):
        whole = 0 if nan else int(count)
        by_reason = {"stop": whole - whole // 10, "length": whole // 10, "abort": 0, "error": 0}
        success += [
            (
                "vllm:request_success_total",
                {"engine": str(engine), "finished_reason": reason, "model_name": model},
                math.nan if nan else float(part),
            )
            for reason, part in by_reason.items()
        ]
    name = "vllm:request_success_total"
    lines += _family(name, "counter", "Count of successfully processed requests.", success)
    lines += _family(
        "vllm:cache_config_info",
        "gauge",
        "Information of the LLMEngine CacheConfig",
        [
            (
                "vllm:cache_config_info",
                {"block_size": "16", "engine": "0", "num_gpu_blocks": "21400"},
                1.0,
            )
        ],
    )
    labels = {"engine": "0", "model_name": model}
    served_s = pod.completed * pod.service_s
    for name, text, bounds, total in (
        ("vllm:time_to_first_token_seconds", "Time to first token.", SECONDS, pod.waited_s),
        ("vllm:inter_token_latency_seconds", "Inter-token latency.", SECONDS, served_s / 180),
        ("vllm:e2e_request_latency_seconds", "End to end latency.", LATENCIES, pod.sojourn_s),
        ("vllm:request_queue_time_seconds", "Time in WAITING phase.", LATENCIES, pod.waited_s),
        ("vllm:request_inference_time_seconds", "Time in RUNNING phase.", LATENCIES, served_s),
        ("vllm:request_prefill_time_seconds", "Time in PREFILL phase.", LATENCIES, served_s / 9),
        ("vllm:request_decode_time_seconds", "Time in DECODE phase.", LATENCIES, served_s * 8 / 9),
        ("vllm:request_prompt_tokens", "Prefill tokens processed.", TOKENS, pod.completed * 420.0),
        ("vllm:request_generation_tokens", "Generated tokens.", TOKENS, pod.completed * 180.0),
    ):
        lines += _histogram(name, text, labels, bounds, total=total, count=pod.completed)
    return "\n".join(lines) + "\n"


def triton_page(pod: Pod, *, model: str = "resnet50", version: str = "1") -> str:
    """The page of a Triton server: counters without `_total`, durations in microseconds."""
    of = {"model": model, "version": version}
    nan = pod.fault == "nan"
    done = math.nan if nan else float(pod.completed)
    compute_us = pod.completed * pod.service_s * 1e6
    _, waiting = pod.gauges
    lines: list[str] = []

    def one(name: str, kind: str, text: str, value: float) -> None:
        lines.extend(_family(name, kind, text, [(name, of, value)]))

    one("nv_inference_request_success", "counter", "Number of successful inference requests", done)
    reasons = ("CANCELED", "REJECTED", "OTHER", "BACKEND")
    name = "nv_inference_request_failure"
    failures = [(name, {**of, "reason": reason}, 0.0) for reason in reasons]
    lines += _family(name, "counter", "Number of failed inference requests", failures)
    one("nv_inference_count", "counter", "Number of inferences performed", done)
    one("nv_inference_exec_count", "counter", "Number of model executions performed", done // 4)
    for name, text, value in (
        ("request", "Cumulative inference request duration", pod.sojourn_s * 1e6),
        ("queue", "Cumulative inference queuing duration", pod.waited_s * 1e6),
        ("compute_input", "Cumulative compute input duration", compute_us * 0.05),
        ("compute_infer", "Cumulative compute inference duration", compute_us * 0.9),
        ("compute_output", "Cumulative inference compute output duration", compute_us * 0.05),
    ):
        full = f"nv_inference_{name}_duration_us"
        one(full, "counter", f"{text} in microseconds (includes cached requests)", float(value))
    pending = math.nan if nan else float(waiting)
    text = "Instantaneous number of pending requests awaiting execution per-model."
    one("nv_inference_pending_request_count", "gauge", text, pending)
    gpu = {"gpu_uuid": "GPU-00000000-0000-0000-0000-000000000000"}
    for name, kind, text, value in (
        ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", 0.62),
        ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", 8.5e10),
        ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", 2.1e10),
        ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", 310.0),
        ("nv_energy_consumption", "counter", "GPU energy consumption in joules", 1.0e6),
    ):
        lines += _family(name, kind, text, [(name, gpu, value)])
    for name, text in (("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"),):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} 0.1"]
    return "\n".join(lines) + "\n"

"""A past for a real Prometheus: days of a vLLM pod's counters and gauges, written as blocks by promtool."""

import subprocess
from collections.abc import Callable
from pathlib import Path

SAMPLE_S = 20.0
SERVICE_S = 0.5


def write_blocks(
    promtool: Path,
    folder: Path,
    *,
    labels: str,
    demand: Callable[[float], float],
    start: float,
    end: float,
) -> None:
    """Fill `folder` with blocks of a pod that served `demand` (requests/s at a Unix time), every SAMPLE_S.

    `labels` are those of every series, without braces.
    """
    counter, gauges, time, completed = [], [], start, 0.0
    while time <= end:
        rate = demand(time)
        completed += rate * SAMPLE_S
        counter.append(
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {completed:.2f} {time:.0f}'
        )
        gauges.append((rate * SERVICE_S, time))
        time += SAMPLE_S
    lines = ["# TYPE vllm:request_success counter", *counter]
    lines.append("# TYPE vllm:num_requests_running gauge")
    lines += [f"vllm:num_requests_running{{{labels}}} {v:.2f} {t:.0f}" for v, t in gauges]
    lines.append("# TYPE vllm:num_requests_waiting gauge")
    lines += [f"vllm:num_requests_waiting{{{labels}}} 0 {t:.0f}" for _, t in gauges]
    text = folder / "past.om"
    folder.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join([*lines, "# EOF\n"]))
    subprocess.run(
        [str(promtool), "tsdb", "create-blocks-from", "--max-block-duration=36h", "openmetrics", str(text), str(folder)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    text.unlink()

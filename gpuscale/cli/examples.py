"""What people type, by command: shown at the end of its --help. Tests hold every line against the options."""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "exporter": (
        "gpuscale exporter",
        "gpuscale exporter --config exporter.yaml --log-format json",
        "gpuscale exporter --nvml simulated:h100x8 --listen 127.0.0.1:9400",
    ),
    "backtest": (
        "gpuscale backtest demand.csv --cold-start 60,180,600",
        "gpuscale backtest demand.csv --policy gpuscale,keda-rate@0.8 --capacity 8 --format json",
        "gpuscale backtest --prometheus http://localhost:9090 --since 14d \\\n"
        "      --query 'sum(rate(vllm:request_success_total[1m]))' --format html -o report.html",
    ),
    "forecast": (
        "gpuscale forecast demand.csv --horizon 180",
        "gpuscale forecast demand.csv --horizon 180 --evaluate --origins 200 --format json",
    ),
    "controller": (
        "gpuscale controller --config controller.yaml",
        "gpuscale controller --config controller.yaml --exporters http://gpu-node-1:9400",
    ),
    "explain": (
        "gpuscale explain inference/llama-8b",
        "gpuscale explain inference/llama-8b --at -15m --url http://localhost:8080",
        "gpuscale explain inference/llama-8b --journal journal.sqlite --at 2026-01-31T12:00 --replay",
    ),
    "replay": ("gpuscale replay --journal journal.sqlite --from -2d",),
    "config check": ("gpuscale config check controller.yaml",),
    "config show": (
        "gpuscale config show",
        "gpuscale config show controller.yaml --policy chat",
    ),
    "config schema": ("gpuscale config schema --for exporter > exporter.schema.json",),
    "scaledobject": (
        "gpuscale scaledobject inference/llama-8b --max 12 --capacity 8",
        "gpuscale scaledobject inference/llama-8b --config controller.yaml --policy chat \\\n"
        "      | kubectl apply -f -",
    ),
    "top": (
        "gpuscale top --gpus",
        "gpuscale top --state error --once",
        "gpuscale top --exporter http://gpu-node-1:9400",
    ),
    "doctor": (
        "gpuscale doctor",
        "gpuscale doctor --prometheus http://localhost:9090 --all",
        "gpuscale doctor --context staging --format json",
    ),
    "lint": (
        "gpuscale lint deploy/",
        "helm template CHART | gpuscale lint -",
        "kubectl get scaledobjects,deployments -A -o yaml | gpuscale lint -",
        "gpuscale lint --format sarif --severity error deploy/ > gpuscale.sarif",
    ),
    "audit": (
        "gpuscale audit",
        "gpuscale audit -n inference --format json",
        "gpuscale audit -f deploy/",
    ),
    "cost": (
        "gpuscale cost --prometheus http://localhost:9090",
        "gpuscale cost --prometheus http://localhost:9090 --by label:cost-center --price prices.yaml",
        "gpuscale cost --config controller.yaml --since 30d --by workload --price opencost",
    ),
    "completion": (
        'eval "$(gpuscale completion bash)"',
        "gpuscale completion zsh > ~/.zfunc/_gpuscale",
    ),
    "demo": (
        "gpuscale demo",
        "gpuscale demo --headless --duration 60 --format json",
    ),
}


def epilog(command: str) -> str | None:
    """The end of a command's help; None for a command without examples."""
    lines = EXAMPLES.get(command)
    # \b: click leaves the paragraph's lines as they are.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None

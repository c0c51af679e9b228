"""The demo as a person sees it: the address of the page, then a table or JSON of what happened."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from gpuscale import log, runtime
from gpuscale.demo.run import Demo, Options


def play(options: Options, *, form: str, live: bool) -> int:
    """Run the demo; print its address at the start (on standard error) and its outcome at the end.

    `form` is "table" or "json". Returns the exit code. `live` also prints a line per simulated ten minutes.
    """
    log.configure("warning", "console")
    words = Console(stderr=True, highlight=False, soft_wrap=True)
    demo = Demo(options, tell=lambda d: _line(words, d) if live else None)

    async def start(daemon: runtime.Daemon) -> None:
        await demo.start(daemon)
        report = demo.report()
        words.print(f"page and API      {report['page']}")
        words.print(f"external scaler   {report['external_scaler']} (gRPC)")
        for exporter in report["exporters"]:
            words.print(f"exporter {exporter['node']}    {exporter['metrics']}")
        until = f"for {options.duration_s:g} s" if options.duration_s else "until Ctrl-C"
        words.print(f"one second is {options.speed:g} simulated seconds; running {until}")

    code = runtime.run(start)
    if code == 0:
        report = demo.report()
        print(json.dumps(report, indent=2) if form == "json" else _text(report))  # noqa: T201
    return code


def _line(words: Console, demo: Demo) -> None:
    if round(demo.elapsed_s) % 600 < 15:
        parts = [
            f"{w['workload']} asked {_or_dash(w['asked'])} ready {w['got']['ready']}"
            for w in demo.report()["workloads"]
        ]
        words.print(f"{demo.elapsed_s / 60:5.0f} min   " + "   ".join(parts))


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)


def _text(report: dict[str, Any]) -> str:
    """The outcome for people: a table, then the reasons."""
    console = Console(width=100, highlight=False, soft_wrap=False)
    table = Table(title=f"{report['simulated_s'] / 60:.0f} simulated minutes")
    for column in (
        "workload",
        "asked",
        "ready",
        "starting",
        "pending",
        "requests",
        "late",
        "hours",
    ):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for w in report["workloads"]:
        late = "–" if w["late_ratio"] is None else f"{100 * w['late_ratio']:.2f} %"
        table.add_row(
            w["workload"],
            _or_dash(w["asked"]),
            *(str(w["got"][stage]) for stage in ("ready", "starting", "pending")),
            str(w["requests"]),
            late,
            f"{w['replica_hours']:.1f}",
        )
    with console.capture() as capture:
        console.print(table)
        for w in report["workloads"]:
            console.print(f"\n[bold]{w['workload']}[/bold]")
            for sentence in w["why"]:
                console.print(f"  {sentence}")
    return capture.get().rstrip()

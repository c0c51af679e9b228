"""What `gpuscale forecast` says: a forecast, or the scores of many, as a table and as JSON."""

import json
import math
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from gpuscale.simulation.report import TABLE_WIDTH
from gpuscale.simulation.rolling import Answer, Evaluation


def write_answer(answer: Answer, file: IO[str], form: str) -> None:
    """One forecast."""
    if form == "json":
        document = {
            "trace": answer.trace,
            "at_s": _number(answer.at_s),
            "horizon_s": _number(answer.horizon_s),
            "target": answer.target,
            "quantiles": _by_level(answer.quantiles),
        }
        _write_json(document, file)
        return
    what = "highest demand within" if answer.target == "peak" else "demand after"
    table = Table(title=f"{answer.trace}: {what} {answer.horizon_s:g} s from {answer.at_s:.15g} s")
    table.add_column("quantile", justify="right")
    table.add_column("units/s", justify="right")
    for level, value in answer.quantiles.items():
        table.add_row(f"{level:g}", f"{value:.6g}")
    _console(file).print(table)


def write_evaluation(found: Evaluation, file: IO[str], form: str) -> None:
    """The scores of a window."""
    if form == "json":
        document = {
            "trace": found.trace,
            "horizon_s": _number(found.horizon_s),
            "target": found.target,
            "origins": found.origins,
            "mase": _number(found.mase),
            "wape": _number(found.wape),
            "relative_mae": _number(found.relative_mae),
            "pinball": _by_level(found.pinball),
            "coverage": _by_level(found.coverage),
            "seconds_per_update": found.seconds_per_update,
        }
        _write_json(document, file)
        return
    title = f"{found.trace}: {found.target} at {found.horizon_s:g} s, {found.origins} origins"
    console = _console(file)
    console.print(title, soft_wrap=True, markup=False)
    points = Table()
    for name in ("MAE / last value's", "MASE", "WAPE", "seconds per update"):
        points.add_column(name, justify="right")
    points.add_row(
        f"{found.relative_mae:.3f}",
        f"{found.mase:.3f}",
        f"{found.wape:.3f}",
        f"{found.seconds_per_update:.2g}",
    )
    console.print(points)
    levels = Table()
    for name in ("quantile", "pinball", "coverage"):
        levels.add_column(name, justify="right")
    for level, pinball in found.pinball.items():
        levels.add_row(f"{level:g}", f"{pinball:.4f}", f"{found.coverage[level]:.3f}")
    console.print(levels)


def _console(file: IO[str]) -> Console:
    return Console(file=file, width=None if file.isatty() else TABLE_WIDTH, highlight=False)


def _write_json(document: dict[str, Any], file: IO[str]) -> None:
    file.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _by_level(values: dict[float, float]) -> dict[str, float | int | None]:
    return {f"{level:g}": _number(value) for level, value in values.items()}


def _number(value: float) -> float | int | None:
    """Whole numbers without a decimal point; null where there is none."""
    if math.isnan(value):
        return None
    return int(value) if value == int(value) else value

"""`gpuscale forecast`: what demand will be, and how good such forecasts were on recorded demand."""

import sys
from typing import TYPE_CHECKING

import click

from gpuscale.errors import InputError, foreign

if TYPE_CHECKING:
    from gpuscale.simulation.rolling import Target


@click.command()
@click.argument("path", metavar="TRACE.csv")
@click.option(
    "--horizon",
    type=float,
    required=True,
    metavar="S",
    help="Seconds ahead: how long a replica takes to start.",
)
@click.option(
    "--target",
    type=click.Choice(["peak", "value"]),
    default="peak",
    show_default=True,
    help="The highest demand within the horizon, or the demand at its end.",
)
@click.option(
    "--quantiles",
    default="0.5,0.9,0.95",
    show_default=True,
    metavar="Q,...",
    help="Which quantiles to say.",
)
@click.option("--evaluate", is_flag=True, help="Score forecasts from many origins instead.")
@click.option(
    "--origins",
    type=int,
    default=300,
    show_default=True,
    metavar="N",
    help="With --evaluate: from how many moments of the window.",
)
@click.option(
    "--from", "from_s", type=float, metavar="S", help="With --evaluate: begin of the window."
)
@click.option(
    "--to", "to_s", type=float, metavar="S", help="Forecast from here; the end of the window."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
def forecast(
    *,
    path: str,
    horizon: float,
    target: "Target",
    quantiles: str,
    evaluate: bool,
    origins: int,
    from_s: float | None,
    to_s: float | None,
    form: str,
    output: str | None,
) -> None:
    """Forecast the demand of a trace as the controller would.

    TRACE.csv has the header timestamp,value: seconds at a fixed step, and the demand in units/s,
    empty where it is missing. With --evaluate the last 7 days are judged, or the last half of a
    shorter trace; everything before is history to learn from, and each forecast has seen only what
    lay before it.
    """
    from pathlib import Path

    from gpuscale.clock import SystemClock
    from gpuscale.simulation import report, rolling, scores, trace

    if from_s is not None and not evaluate:
        raise InputError("--from says which window --evaluate judges; a forecast starts at --to")
    asked = rolling.Question(
        horizon_s=horizon,
        target=target,
        quantiles=_numbers(quantiles),
        origins=origins,
        from_s=from_s,
        to_s=to_s,
    )
    recorded = trace.load(Path(path))
    with report.opened(output, sys.stdout) as file:
        if evaluate:
            found = rolling.evaluate(recorded, asked, SystemClock().monotonic)
            scores.write_evaluation(found, file, form)
        else:
            scores.write_answer(rolling.answer(recorded, asked), file, form)


def _numbers(text: str) -> tuple[float, ...]:
    """Levels out of `0.5,0.9`."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise InputError(
            f"--quantiles {foreign(text)!r} is not a list of levels; write e.g. 0.5,0.9,0.95"
        ) from None

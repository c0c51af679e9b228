"""A backtest as one HTML file that needs nothing else: no server, no network.

The charts' library comes out of the plotly package and is written into the file, as are the data.
The page's policy allows its own inline scripts and nothing from anywhere; what is foreign (a trace's
name) reaches the page as JSON and is written as text.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import resources
from typing import IO, Any

from gpuscale import __version__
from gpuscale.controller import assets
from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError
from gpuscale.settings import Policy
from gpuscale.simulation.backtest import Detail
from gpuscale.simulation.options import Options
from gpuscale.simulation.peers import TARGET_DEFAULT
from gpuscale.simulation.recording import Digest, Explanation
from gpuscale.simulation.report import Price

RUNS_MAX = 100
"""Runs in one report: beyond it each would be left too few points to show anything."""

BINS_TOTAL = 12_000
EXPLAINED_TOTAL = 14_000
"""Points and explanations of all runs together, some 400 and 300 bytes each: with the charts' library
(5 MB) the file stays below 10 MB."""

BINS_MAX = 1_500
"""Points of one run: more than a screen has columns."""

DIGITS = 4
"""Significant digits of what is drawn."""

BAND = (0.5, 0.95)
"""Quantiles between which the forecast is drawn."""

CURVE: tuple[str, ...] = (
    *(f"gpuscale@{risk:g}" for risk in (0.7, 0.8, 0.9, 0.95, 0.98)),
    *(
        f"{peer}@{target:g}"
        for peer in ("keda-rate", "hpa-util", "knative")
        for target in (0.6, 0.7, 0.8, 0.9)
    ),
)
"""Policies on the curve beside those that are compared."""

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def drawn(options: Options, traces: int) -> Options:
    """The options of a backtest that a report is drawn from: with the curve, and digests so large
    that the file stays small. Raises InputError where there are too many runs."""
    runs = traces * len(dict.fromkeys(options.cold_starts_s))
    if runs > RUNS_MAX:
        raise InputError(
            f"an HTML report holds {RUNS_MAX} runs, and these would be {runs}; give fewer traces or cold starts, or use --format json"
        )
    bins = min(BINS_MAX, BINS_TOTAL // max(1, runs))
    return replace(
        options,
        curve=tuple(name for name in CURVE if name not in options.policies),
        digest_bins=bins,
        explained_per_bin=max(1, EXPLAINED_TOTAL // (bins * max(1, runs))),
    )


def write(details: Sequence[Detail], price: Price, source: str, file: IO[str]) -> None:
    """Write the report. `source`: where the demand comes from. Raises InputError without plotly."""
    library = assets.plotly_script()
    if library is None:
        raise InputError(
            "an HTML report is drawn by plotly, which is not installed: pip install 'gpuscale[controller]'"
        )
    root = resources.files("gpuscale.simulation") / "static"
    parts = {
        "STYLE": (root / "report.css").read_text("utf-8"),
        "DATA": _data(details, price, source),
        "PLOTLY": library,
        "SCRIPT": (root / "report.js").read_text("utf-8"),
    }
    page = (root / "report.html").read_text("utf-8")
    for piece in re.split(r"(/\*[A-Z]+\*/)", page):
        name = piece[2:-2]
        file.write(parts[name] if piece.startswith("/*") and name in parts else piece)


def _data(details: Sequence[Detail], price: Price, source: str) -> str:
    """The data as JSON that no HTML parser takes for markup."""
    phrases = _Phrases()
    document = {
        "version": __version__,
        "source": source,
        "price": price.per_gpu_hour,
        "gpus": price.gpus_per_replica,
        "targets": {**TARGET_DEFAULT, "gpuscale": Policy().risk},
        "runs": [_run(detail, phrases) for detail in details],
        "sentences": phrases.texts,
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _run(detail: Detail, phrases: "_Phrases") -> dict[str, Any]:
    run, digest = detail.run, detail.digest
    return {
        "trace": detail.trace,
        "cold_start_s": run.cold_start_s,
        "capacity_per_replica": run.capacity_per_replica,
        "from_s": run.from_s,
        "to_s": run.to_s,
        "policies": [asdict(score) for score in run.policies],
        "curve": [asdict(score) for score in detail.curve],
        "start_s": digest.start_s,
        "bin_s": digest.bin_s,
        "demand": _column(digest.demand),
        "forecast": _forecast(digest),
        "lines": {
            policy: {
                "asked": _column(lines.asked),
                "ready": _column(lines.ready),
                "busy": _column(lines.busy),
                "late": _column(lines.late_ratio),
            }
            for policy, lines in digest.lines.items()
        },
        "explained": [[each.at_s, phrases.packed(each)] for each in digest.explained],
    }


def _forecast(digest: Digest) -> dict[str, Any] | None:
    if not digest.levels:
        return None
    low, high = (
        min(range(len(digest.levels)), key=lambda i: abs(digest.levels[i] - level))
        for level in BAND
    )
    return {
        "levels": [digest.levels[low], digest.levels[high]],
        "low": _column(digest.forecast[:, low]),
        "high": _column(digest.forecast[:, high]),
    }


def _column(values: Floats) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | int | None:
    """Few digits, since a screen shows no more; None where unknown."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) else short


class _Phrases:
    """Sentences with their numbers taken out: there are few of them, and thousands of explanations.

    An explanation is packed as `WHICH NUMBER NUMBER|WHICH …`, where WHICH is the place in `texts` of
    the pieces between the numbers.
    """

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self._known: dict[tuple[str, ...], int] = {}

    def packed(self, explanation: Explanation) -> str:
        """One explanation; sentences met for the first time are remembered."""
        return "|".join(self._packed(sentence) for sentence in explanation.sentences)

    def _packed(self, sentence: str) -> str:
        pieces = tuple(_NUMBER.split(sentence))
        which = self._known.setdefault(pieces, len(self.texts))
        if which == len(self.texts):
            self.texts.append(list(pieces))
        return " ".join([str(which), *_NUMBER.findall(sentence)])

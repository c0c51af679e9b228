"""Traces that tests make for themselves, from formulas alone."""

import math
from pathlib import Path

STEP_S = 60
DAYS = 2


def daily(minute: int) -> float | None:
    """Demand with a daily wave, a morning step, a burst each three hours, a spike and two holes."""
    hour = minute / 60 % 24
    value = 40 + 30 * math.sin((hour - 9) / 24 * 2 * math.pi)
    if 8 <= hour < 18:
        value += 35
    if minute % 180 < 7:
        value *= 1.6
    if 2020 <= minute < 2026:
        value += 150
    if 1700 <= minute < 1712 or minute in {2400, 2401, 2402}:
        return None
    return round(value, 3)


def write_daily(folder: Path, name: str = "generated_daily") -> Path:
    """Two days of `daily` as a CSV file."""
    path = folder / f"{name}.csv"
    rows = [daily(minute) for minute in range(DAYS * 1440)]
    lines = [f"{i * STEP_S},{'' if v is None else v}" for i, v in enumerate(rows)]
    path.write_text("\n".join(["timestamp,value", *lines]) + "\n", encoding="utf-8")
    return path

"""`gpuscale top`: the fleet and its GPUs in a terminal, from the JSON API of a controller or of exporters.

What is shown is another process's word: unknown is a dash, text is text and no markup, and an answer
that does not come leaves the last one on the screen, with its age.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpuscale.clock import Clock
from gpuscale.controller import gpumap
from gpuscale.controller.exporters import Exporters
from gpuscale.errors import (
    SourceError,
    SourceMalformed,
    SourceRefused,
    SourceUnreachable,
    foreign,
)

TIMEOUT_S = 10.0
BYTES_MAX = 8 * 2**20
"""A thousand rows with their small charts are some 2 MB."""
NODES_MAX = 200
"""Nodes asked for at once: more do not fit a screen."""
HOLDERS_MAX = 3

_STATES = {
    "error": "bold red", "held": "yellow", "paused": "magenta", "rising": "cyan", "falling": "cyan",
    "steady": "green", "sick": "bold red", "bypassed": "bold magenta", "busy": "green", "idle": "yellow",
    "fragmented": "yellow", "free": "blue", "unknown": "dim",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown at one moment."""

    source: str
    """Whom it was asked of."""
    at: float
    """Wall time of the last answer."""
    status: Mapping[str, Any] | None = None
    """None where exporters are asked alone."""
    workloads: Sequence[Mapping[str, Any]] = field(default=())
    total: int = 0
    """Workloads that match, shown or not."""
    gpus: Mapping[str, Any] | None = None
    """None where nobody asked for them."""
    problem: str | None = None
    """Why there is no newer answer."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "source": self.source,
            "at": self.at,
            "status": self.status,
            "total": self.total,
            "workloads": list(self.workloads),
            "gpus": self.gpus,
        }


class Source(Protocol):
    """Where views come from."""

    async def read(self) -> View:
        """The newest view. Raises SourceError."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class FromController:
    """Views from a controller's API."""

    def __init__(
        self, url: str, clock: Clock, *, limit: int, search: str, state: str, gpus: bool
    ) -> None:
        self._url = url.rstrip("/")
        self._clock = clock
        wanted = {"limit": str(limit), "q": search, "state": state}
        self._workloads = "/api/v1/workloads?" + urlencode({k: v for k, v in wanted.items() if v})
        self._gpus = gpus
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> View:
        """Status, workloads, and GPUs where they are wanted."""
        status = await self._get("/api/v1/status")
        listed = await self._get(self._workloads)
        items, total = listed.get("items"), listed.get("total")
        gpus = await self._get(f"/api/v1/gpus?limit={NODES_MAX}") if self._gpus else None
        return View(
            source=self._url,
            at=self._clock.wall(),
            status=status,
            workloads=[i for i in items if isinstance(i, dict)] if isinstance(items, list) else [],
            total=total if isinstance(total, int) else 0,
            gpus=gpus,
        )

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, path: str) -> Mapping[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.get(self._url + path, allow_redirects=False) as response:
                raw = await response.content.read(BYTES_MAX)
                while (more := await response.content.read(BYTES_MAX)) and len(raw) <= BYTES_MAX:
                    raw += more
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SourceUnreachable(
                f"no controller answers at {self._url} ({foreign(error) or type(error).__name__}): "
                "start it, or correct --url; kubectl port-forward reaches one in a cluster"
            ) from error
        if status in (401, 403):
            raise SourceRefused(
                f"{self._url} wants to know who asks ({status}): ask behind its proxy, or where no users are set"
            )
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceMalformed(
                f"{self._url} is no controller of gpuscale: name the address of its page"
            ) from error
        if status != 200:
            raise SourceRefused(
                f"{self._url}: {foreign(body.get('error', f'it answered {status}'))}"
            )
        return body


class FromExporters:
    """Views of GPUs alone, from the exporters themselves."""

    def __init__(self, exporters: Exporters, source: str, clock: Clock) -> None:
        self._exporters = exporters
        self._source = source
        self._clock = clock

    async def read(self) -> View:
        """The map of GPUs; one exporter that fails is a problem on it."""
        found = await self._exporters.map()
        return View(
            source=self._source,
            at=self._clock.wall(),
            gpus=gpumap.as_dict(found, offset=0, limit=NODES_MAX),
        )

    async def close(self) -> None:
        """Nothing is kept open."""


async def watch(source: Source, console: Console, clock: Clock, *, interval_s: float) -> None:
    """Show the newest view for ever. Raises SourceError where there is none at first."""
    view = await source.read()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown(view, clock.wall()), refresh=True)
            await clock.sleep(interval_s)
            try:
                view = await source.read()
            except SourceError as error:
                view = replace(view, problem=str(error))


async def once(source: Source) -> View:
    """One view. Raises SourceError."""
    try:
        return await source.read()
    finally:
        await source.close()


# ---------------------------------------------------------------- what is shown


def shown(view: View, now: float) -> RenderableType:
    """The view as tables."""
    parts: list[RenderableType] = [_head(view, now)]
    if view.status is not None:
        parts.append(_workloads(view))
    if view.gpus is not None:
        parts += [_gpu_counts(view.gpus), _gpus(view.gpus)]
    return Group(*parts)


def number(value: object, digits: int = 0, *, factor: float = 1.0) -> str:
    """A number, a dash for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return f"{value * factor:,.{digits}f}"


def _head(view: View, now: float) -> Text:
    head = Text(view.source, style="bold")
    status = view.status
    if status is not None:
        head.append(f"  gpuscale {_word(status.get('version'))}", style="default")
        at = status.get("at")
        age = now - at if isinstance(at, int | float) else None
        head.append(f"  decided {number(age)} s ago", style="default")
        states = status.get("states")
        for state, count in states.items() if isinstance(states, dict) else ():
            head.append(
                f"  {number(count)} {_word(state)}", style=_STATES.get(str(state), "default")
            )
        if isinstance(waiting := status.get("ready"), str):
            head.append(f"\n{_word(waiting)}", style="yellow")
        faults = status.get("faults")
        for fault in faults[:3] if isinstance(faults, list) else ():
            head.append(f"\n{_word(fault)}", style="red")
    if view.problem is not None:
        head.append(f"\n{now - view.at:.0f} s old: {view.problem}", style="bold red")
    return head


def _word(value: object) -> str:
    return foreign(value) if isinstance(value, str | int | float) else "–"


def _workloads(view: View) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("workload", overflow="ellipsis", no_wrap=True)
    table.add_column("state")
    table.add_column("mode")
    columns = (
        "demand/s",
        "queued",
        "want",
        "asked",
        "ready",
        "starting",
        "pending",
        "one carries",
        "start, s",
        "age, s",
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for each in view.workloads:
        state = _word(each.get("state"))
        table.add_row(
            Text(f"{_word(each.get('namespace'))}/{_word(each.get('name'))}"),
            Text(state, style=_STATES.get(state, "default")),
            Text(_word(each.get("mode"))),
            number(each.get("demand"), 1),
            number(each.get("backlog")),
            number(each.get("desired")),
            number(each.get("asked")),
            number(each.get("ready")),
            number(each.get("starting")),
            number(each.get("pending")),
            number(each.get("capacity"), 1),
            number(each.get("lead_s")),
            number(each.get("age_s")),
        )
    hidden = view.total - len(view.workloads)
    if hidden > 0:
        table.caption = f"{hidden} more: narrow with -q, or raise --limit"
    return table


def _gpu_counts(gpus: Mapping[str, Any]) -> Text:
    count, nodes = (number(gpus.get(name)) for name in ("gpus", "total"))
    line = Text(
        f"{count} GPU{'' if count == '1' else 's'} on {nodes} node{'' if nodes == '1' else 's'}",
        style="bold",
    )
    states = gpus.get("states")
    for state, count in states.items() if isinstance(states, dict) else ():
        line.append(f"  {number(count)} {_word(state)}", style=_STATES.get(str(state), "default"))
    if gpus.get("configured") is False:
        line.append(
            "\nno exporter is named: set exporters.urls, or give --exporter URL", style="yellow"
        )
    problems = gpus.get("problems")
    for problem in problems[:3] if isinstance(problems, list) else ():
        line.append(f"\n{_word(problem)}", style="red")
    return line


def _gpus(gpus: Mapping[str, Any]) -> Table:
    # Whose it is takes the width that is left: a long reason must not squeeze the numbers.
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for name in ("node", "GPU", "product", "state"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in ("util %", "mem GiB", "of", "W", "°C"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("held by", overflow="ellipsis", no_wrap=True, ratio=1)
    items = gpus.get("items")
    for node in items if isinstance(items, list) else ():
        if not isinstance(node, dict):
            continue
        if node.get("problem"):
            problem = Text(_word(node.get("problem")), style="red")
            table.add_row(Text(_word(node.get("node"))), *[""] * 8, problem)
        found = node.get("gpus")
        for gpu in found if isinstance(found, list | tuple) else ():
            if isinstance(gpu, dict):
                table.add_row(*_gpu(_word(node.get("node")), gpu))
    return table


def _gpu(node: str, gpu: Mapping[str, Any]) -> list[RenderableType]:
    state = _word(gpu.get("state"))
    holders = gpu.get("holders")
    names = [
        f"{_word(h.get('namespace'))}/{_word(h.get('pod'))}"
        for h in (holders if isinstance(holders, list | tuple) else ())
        if isinstance(h, dict)
    ]
    held = ", ".join(names[:HOLDERS_MAX])
    if len(names) > HOLDERS_MAX:
        held += f" and {len(names) - HOLDERS_MAX} more"
    gib = 1 / 2**30
    return [
        Text(node),
        Text(_word(gpu.get("gpu"))),
        Text(_word(gpu.get("product"))),
        Text(state, style=_STATES.get(state, "default")),
        number(gpu.get("utilization"), factor=100),
        number(gpu.get("memory_used_bytes"), 1, factor=gib),
        number(gpu.get("memory_total_bytes"), factor=gib),
        number(gpu.get("power_watts")),
        number(gpu.get("temperature_celsius")),
        Text(held or _word(gpu.get("why") or "")),
    ]

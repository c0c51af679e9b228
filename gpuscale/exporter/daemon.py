"""The exporter put together: threads that read the driver, a loop that asks the kubelet, a loop that renders, HTTP.

`run` is the process; `Exporter` is the same thing inside an event loop that somebody else owns.
"""

import asyncio
import functools
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client.core import Metric

from gpuscale import __version__, httpd, log, runtime
from gpuscale.clock import Clock, SystemClock
from gpuscale.config import convert
from gpuscale.errors import ConfigError
from gpuscale.exporter import dcgm, exposition, simulated
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.collectors.compatible import error_counts_for
from gpuscale.exporter.collectors.processes import ProcessCollector
from gpuscale.exporter.device import Driver
from gpuscale.exporter.holders import Holders
from gpuscale.exporter.nvml import NvmlDriver
from gpuscale.exporter.sample import (
    Collector,
    DriverState,
    NodeSample,
)
from gpuscale.exporter.sampler import Observed, Sampler
from gpuscale.settings import ExporterSettings

STOP_WAIT_S = 0.5
"""How long the driver may take to be closed at the end; a call that hangs is left to the process's end."""

NVML_OFF = Observed(
    driver=DriverState(up=False, reason="NVML is switched off by the setting nvml"),
    devices=(),
    collectors=tuple,
)

_log = log.get("exporter")


class _Snapshot:
    """A cycle's node sample, put together when the first scrape or reader asks for it.

    Cycles come once a second and scrapes a few times a minute: most are never asked for.
    """

    def __init__(self, observed: Observed, node: Callable[..., NodeSample]) -> None:
        self._observed = observed
        self._node = node

    @functools.cached_property
    def sample(self) -> NodeSample:
        """Immutable; the same one for all who ask."""
        return self._node(
            devices=tuple(glance.sample() for glance in self._observed.devices),
            collectors=self._observed.collectors(),
        )


class Exporter:
    """One node's exporter. `start` it within a `runtime.Daemon`, which then owns its loops and its end."""

    def __init__(
        self,
        settings: ExporterSettings,
        *,
        node: str,
        driver: Driver | None,
        clock: Clock,
        collectors: Sequence[Collector] = COLLECTORS,
        own_pod_uid: str | None = None,
    ) -> None:
        """`driver` None is the kill switch: nothing is ever asked of NVML."""
        self._settings = settings
        self._node = node
        self._clock = clock
        self._holders = Holders(settings, clock, own_pod_uid=own_pod_uid)
        extra = error_counts_for(settings.dcgm.extra_fields) if settings.dcgm.enabled else ()
        processes = (ProcessCollector(),) if self._holders.maps_processes else ()
        self._sampler = (
            None
            if driver is None
            else Sampler(
                driver,
                (*collectors, *extra, *processes),
                settings=settings,
                clock=clock,
            )
        )
        self._server: httpd.HttpServer | None = None
        self._snapshot: _Snapshot | None = None
        self._page = self._render(None)
        self._cycles = 0

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that it listens on, once started."""
        assert self._server is not None, "start() comes first"
        return self._server.address

    @property
    def sample(self) -> NodeSample | None:
        """The newest snapshot; None before the first cycle."""
        return None if self._snapshot is None else self._snapshot.sample

    async def start(self, daemon: runtime.Daemon) -> None:
        """Listen, then begin to read. Raises ListenError, ConfigError."""
        web_settings = self._settings.web
        application = httpd.application(
            page=lambda: self._page,
            ready=self._not_ready,
            scrapes_max=web_settings.max_scrapes_in_flight,
        )
        application.router.add_get("/api/v1/sample", self._answer_sample)
        application.router.add_get("/api/v1/audit", self._answer_audit)
        self._server = await httpd.HttpServer.start(
            application, self._settings.listen, web_settings.config_file
        )
        daemon.close_with(f"http of {self._node}", self._server.close)
        if web_settings.config_file is not None:
            daemon.own(f"web config of {self._node}", self._server.keep_config())
        host, port = self._server.address
        _log.info("listening", host=host, port=port, node=self._node, version=__version__)
        self._holders.start(daemon, self._node)
        if self._sampler is not None:
            daemon.close_with(f"driver of {self._node}", self._stop_sampler)
            self._sampler.start()
        daemon.own(f"cycles of {self._node}", self._turn())

    def release_driver(self) -> None:
        """Let go of the driver, so that it can be upgraded, until `take_driver`. The page says so."""
        if self._sampler is not None:
            self._sampler.release()

    def take_driver(self) -> None:
        """Open the driver again."""
        if self._sampler is not None:
            self._sampler.resume()

    # ----- loops

    async def _turn(self) -> None:
        await runtime.every(self._clock, self._settings.periods.fast_s, self._cycle)

    async def _cycle(self) -> None:
        """Take what is known, and render it; the page of before is served until this one is done."""
        observed = NVML_OFF if self._sampler is None else self._sampler.observe()
        if observed is None:
            return  # the driver is still being asked for the first time
        attribution, usage = await self._holders.look(
            observed.devices, driver_up=observed.driver.up
        )
        now = self._clock.wall()
        self._cycles += 1
        snapshot = _Snapshot(
            observed,
            partial(
                NodeSample,
                sequence=self._cycles,
                at=now,
                node=self._node,
                driver=observed.driver,
                attribution=attribution,
                usage=usage,
                cycles=self._cycles,
            ),
        )
        self._page = self._render(snapshot)
        self._snapshot = snapshot

    def _render(self, snapshot: "_Snapshot | None") -> httpd.Exposition:
        def sample() -> NodeSample | None:
            return None if snapshot is None else snapshot.sample

        def families() -> Iterator[Metric]:
            yield from exposition.families(sample(), self._clock.wall())

        if not self._settings.dcgm.enabled:
            return httpd.render(families())

        @functools.cache
        def compatible() -> dcgm.Pages:
            settings = self._settings.dcgm
            return dcgm.render(sample(), settings.hostname_label, settings.extra_fields)

        return httpd.render(
            families(),
            extra_text=lambda: compatible().text,
            extra_openmetrics=lambda: compatible().openmetrics,
        )

    async def _stop_sampler(self) -> None:
        assert self._sampler is not None
        if not await asyncio.to_thread(self._sampler.stop, STOP_WAIT_S):
            _log.warning("driver left open", reason="a call into it has not returned")

    # ----- HTTP

    def _not_ready(self) -> str | None:
        """Why not ready; None once a cycle is done, whatever the driver says.

        A node without a working driver is ready: a Service sends Prometheus to ready pods only,
        and gpuscale_nvml_up 0 is what must be seen then.
        """
        return None if self._snapshot is not None else "no collection cycle has finished yet"

    async def _answer_sample(self, _: web.Request) -> web.Response:
        """The newest snapshot as JSON, with its sequence number and wall times."""
        sample = self.sample
        if sample is None:
            return web.json_response({"error": self._not_ready()}, status=503)
        return web.Response(body=msgspec.json.encode(sample), content_type="application/json")

    async def _answer_audit(self, _: web.Request) -> web.Response:
        """The lasting findings of the node audit as JSON, each with its evidence."""
        usage = None if (sample := self.sample) is None else sample.usage
        if usage is None:
            return web.json_response({"error": self._not_ready()}, status=503)
        body = {"node": self._node, **msgspec.to_builtins(usage.audit)}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def run(
    settings: ExporterSettings, environ: Mapping[str, str], driver: Driver | None = None
) -> int:
    """Run the exporter until a signal; the exit code. `driver` takes the place of the one that is set.

    A thread may still hang in the driver when this returns: leave with `runtime.exit_now`.
    """
    log.configure(settings.log.level, settings.log.format)
    clock = SystemClock()

    async def start(daemon: runtime.Daemon) -> None:
        _check(settings)
        exporter = Exporter(
            settings,
            node=settings.node_name or environ.get("NODE_NAME") or socket.gethostname(),
            driver=driver or driver_of(settings, clock),
            clock=clock,
            own_pod_uid=environ.get("POD_UID"),
        )
        await exporter.start(daemon)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, exporter.release_driver)
        loop.add_signal_handler(signal.SIGUSR2, exporter.take_driver)

    return runtime.run(start)


def with_options(
    settings: ExporterSettings,
    options: Mapping[str, str | None],
    *,
    log_options: Mapping[str, str | None],
) -> ExporterSettings:
    """The settings with what the command line gave in place; None is not given. Raises ConfigError."""
    data = msgspec.to_builtins(settings)
    data |= {key: value for key, value in options.items() if value is not None}
    data["log"] |= {key: value for key, value in log_options.items() if value is not None}
    return convert(data, ExporterSettings, where="command line")


def driver_of(settings: ExporterSettings, clock: Clock) -> Driver | None:
    """The driver that the setting `nvml` names; None when it is off. Raises ConfigError."""
    if settings.nvml == "off":
        return None
    if settings.nvml == "auto":
        return NvmlDriver(root=None if settings.driver_root is None else Path(settings.driver_root))
    return simulated.driver(settings.nvml.removeprefix("simulated:"), clock.monotonic)


def _check(settings: ExporterSettings) -> None:
    """Refuse what the settings' types cannot: an expression that is none. Raises ConfigError."""
    for pattern in settings.pod_resources.resources:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"pod_resources.resources: {pattern!r} is not a regular expression ({error}): correct it"
            ) from error

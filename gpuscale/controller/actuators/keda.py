"""KEDA's external scaler over gRPC: five calls, answered from memory alone.

Every answer comes from the last published `Snapshot`, so that no call waits for anything and every
replica of the controller says the same. There is no "unknown" on this wire (0 and unset are one),
so what is not known is an error status: the HPA then holds, and KEDA's fallback may act.

Two rules follow from how KEDA calls (pkg/scalers/external_scaler.go):

- GetMetricSpec is answered even while no number is known: KEDA asks it first, its fallback only
  counts failures of GetMetrics, and KEDA up to 2.19 builds an HPA on CPU for ever when it fails at
  the creation of a ScaledObject. The spec never changes, so there is nothing in it to be unsure of.
- A stream ends with OK, always: KEDA resets its backoff (2 s, doubling to 60 s) only on a clean end.
"""

import asyncio
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc

from gpuscale.clock import Clock
from gpuscale.config import split_listen
from gpuscale.controller import trigger
from gpuscale.controller.domain import Answer, Snapshot
from gpuscale.controller.keyfiles import KeyFiles
from gpuscale.errors import ListenError, foreign
from gpuscale.proto import externalscaler_pb2 as pb
from gpuscale.proto.externalscaler_pb2_grpc import (
    ExternalScalerServicer,
    add_ExternalScalerServicer_to_server,
)

METRIC = "desired-replicas"
TARGET = 1
"""Constant: with AverageValue the HPA computes ceil(answer / 1), which is the answer. KEDA does not
carry a changed target to the HPA."""
VALUE_MAX = 1_000_000
"""Ten times the most replicas a policy may ask for; beyond it the number is an error of ours."""

STALE_AFTER_S = 60.0
"""Age from which a snapshot is no answer any more; to be raised with ticks above 15 s."""
REPEAT_S = 10.0
"""A stream repeats `true` this often: KEDA drops one that comes before its status is filled in."""
REPEAT_TOLERANCE = 0.99
"""A timer may fire a clock tick early; the repetition is then due all the same."""
STREAM_S = 300.0
STREAM_JITTER_S = 60.0
"""A stream ends after STREAM_S and up to STREAM_JITTER_S more, so that streams never end at once."""
UNKNOWN_S = 30.0
"""A stream for an object that is not known waits this long, two ticks, before it ends with NOT_FOUND:
KEDA opens it within a second of the object's creation, and its backoff after an error stays long."""
STREAMS_PER_OBJECT_MAX = 4
"""KEDA holds one per object and kind; more are left from connections that died. The oldest ends."""
STREAMS_MAX = 40_000
"""Both streams of 10,000 objects, twice over (a KEDA that restarts)."""
CALLS_MAX = STREAMS_MAX + 2_000
REQUEST_BYTES_MAX = 256 * 1024
"""A reference with its metadata takes a kilobyte or two."""
GRACE_S = 2.0
"""Calls under way get this long at the end; they take microseconds."""

CONNECTION_AGE_S = 600
"""Connections are renewed this often, so that KEDA asks DNS again and finds new replicas."""
CONNECTION_GRACE_S = 420
"""Longer than any stream, so that renewing a connection never cuts one."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # a second process on the port is an error, not half of the calls
    ("grpc.max_connection_age_ms", CONNECTION_AGE_S * 1000),
    ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
)

_METRIC_ASKED = re.compile(rf"(s\d{{1,4}}-)?{METRIC}")
"""KEDA strips the prefix of its metric names; a client that does not is understood too."""
_NOTHING: Mapping[str, str] = MappingProxyType({})

Context = grpc.aio.ServicerContext[Any, Any]


class _Failure(Exception):
    """A call that ends with an error status and one sentence."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(slots=True, eq=False)
class _Stream:
    """One open stream: what wakes it, and whether it is asked to end."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False

    def end(self) -> None:
        self.ending = True
        self.changed.set()


class ExternalScaler:
    """The server. `publish` what is to be answered, `start` it, `close` it; one event loop owns it."""

    def __init__(
        self,
        clock: Clock,
        *,
        stale_after_s: float = STALE_AFTER_S,
        repeat_s: float = REPEAT_S,
        stream_s: float = STREAM_S,
        stream_jitter_s: float = STREAM_JITTER_S,
        unknown_s: float = UNKNOWN_S,
        keys: KeyFiles | None = None,
        options: tuple[tuple[str, int], ...] = OPTIONS,
    ) -> None:
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._repeat_s = repeat_s
        self._stream_s = stream_s
        self._stream_jitter_s = stream_jitter_s
        self._unknown_s = unknown_s
        self._keys = keys
        self._options = options
        self._snapshot: Snapshot | None = None
        self._fresh_until = 0.0
        self._refusals = _NOTHING
        self._requests: Counter[tuple[str, str]] = Counter()
        self._streams: dict[tuple[str, str], list[_Stream]] = {}
        self._open: Counter[str] = Counter()
        self._random = random.Random()  # noqa: S311 - spreads ends of streams, keeps no secret
        self._server: grpc.aio.Server | None = None
        self._closing = False

    # ------------------------------------------------------------ what the daemon calls

    def publish(self, snapshot: Snapshot, refusals: Mapping[str, str] = _NOTHING) -> None:
        """Answer from `snapshot` from now on; `refusals` are sentences by key, for what is declared wrongly.

        A key of the snapshot is answered even where a refusal names it too. Wakes the streams whose
        state changed.
        """
        before, self._snapshot, self._refusals = self._snapshot, snapshot, refusals
        age_s = max(0.0, self._clock.wall() - snapshot.at)
        self._fresh_until = self._clock.monotonic() + self._stale_after_s - age_s
        old = before.answers if before is not None else {}
        for (_, key), streams in self._streams.items():
            if _active(old.get(key)) != _active(snapshot.answers.get(key)):
                for stream in streams:
                    stream.changed.set()

    async def start(self, listen: str) -> tuple[str, int]:
        """Listen on HOST:PORT and return what was bound. Raises ListenError, and ConfigError for certificates."""
        host, port = split_listen(listen)
        server = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=CALLS_MAX)
        add_ExternalScalerServicer_to_server(_Servicer(self), server)
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = (
                server.add_insecure_port(shown)
                if self._keys is None
                else server.add_secure_port(shown, self._keys.credentials())
            )
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {shown} for KEDA's calls ({foreign(error)}): stop what holds the "
                "port, or choose another address (--listen-grpc, or `listen_grpc` in the settings)"
            ) from error
        await server.start()
        self._server = server
        return host, bound

    async def close(self) -> None:
        """End every stream with OK, then stop listening; calls under way get GRACE_S."""
        self._closing = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(GRACE_S)

    @property
    def requests(self) -> Mapping[tuple[str, str], int]:
        """Calls that ended, by (method, name of the gRPC code)."""
        return dict(self._requests)

    @property
    def streams(self) -> Mapping[str, int]:
        """Streams that are open, by method."""
        return {method: self._open[method] for method in ("StreamIsActive", "StreamMetricSpec")}

    # ------------------------------------------------------------ what the calls are answered from

    def fresh(self) -> Snapshot:
        """The snapshot. Raises _Failure UNAVAILABLE before the first and when it is too old."""
        if self._snapshot is None:
            raise _Failure(
                grpc.StatusCode.UNAVAILABLE,
                "gpuscale has just started and has decided nothing yet: it will within two ticks",
            )
        if self._clock.monotonic() >= self._fresh_until:
            raise _Failure(
                grpc.StatusCode.UNAVAILABLE,
                f"the last decision is older than {self._stale_after_s:g} s: see the controller's log",
            )
        return self._snapshot

    def answer(self, reference: pb.ScaledObjectRef) -> Answer:
        """The answer for one ScaledObject. Raises _Failure where there is none."""
        key = self.check(reference)
        found = self.fresh().answers.get(key)
        if found is None:
            raise _Failure(
                grpc.StatusCode.NOT_FOUND,
                f"{key} is not known to gpuscale: check that the controller watches its namespace, or "
                "declare it under `workloads`",
            )
        return found

    def check(self, reference: pb.ScaledObjectRef) -> str:
        """The key of a reference. Raises _Failure INVALID_ARGUMENT where its declaration is refused."""
        if not (reference.namespace and reference.name):
            raise _Failure(
                grpc.StatusCode.INVALID_ARGUMENT, "namespace and name of the ScaledObject are empty"
            )
        key = f"{reference.namespace}/{reference.name}"
        if self._snapshot is not None and key in self._snapshot.answers:
            return key
        sentence = self._refusals.get(key) or trigger.fault(reference.scalerMetadata)
        if sentence is not None:
            raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        return key

    def count(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended."""
        self._requests[method, code.name] += 1

    # ------------------------------------------------------------ streams

    async def follow_state(
        self, reference: pb.ScaledObjectRef, send: Callable[[bool], Awaitable[None]]
    ) -> None:
        """Send active or not: at once, at every change, `true` again every REPEAT_S; nothing while unknown."""
        with self._opened("StreamIsActive", self.check(reference)) as (stream, until):
            said: bool | None = None
            said_at = opened = self._clock.monotonic()
            while not stream.ending and (now := self._clock.monotonic()) < until:
                stream.changed.clear()
                state = self._state(reference, now - opened)
                repeat = state is True and now - said_at >= self._repeat_s * REPEAT_TOLERANCE
                if state is not None and (state is not said or repeat):
                    said, said_at = state, now
                    await send(state)
                await self._wait(stream, min(until, now + self._repeat_s))

    async def follow_specs(
        self, reference: pb.ScaledObjectRef, send: Callable[[], Awaitable[None]]
    ) -> None:
        """Send the specs at once; they never change, so that the stream then only stays open."""
        with self._opened("StreamMetricSpec", self.check(reference)) as (stream, until):
            await send()
            while not stream.ending and self._clock.monotonic() < until:
                stream.changed.clear()
                await self._wait(stream, until)

    def _state(self, reference: pb.ScaledObjectRef, waited_s: float) -> bool | None:
        """Active or not; None while that is not known. Raises _Failure for what stays unknown or is refused."""
        try:
            return self.answer(reference).active
        except _Failure as failure:
            if failure.code is grpc.StatusCode.UNAVAILABLE:
                return None
            if failure.code is grpc.StatusCode.NOT_FOUND and waited_s < self._unknown_s:
                return None
            raise

    async def _wait(self, stream: _Stream, until: float) -> None:
        """Return at `until` of the clock, or earlier when the stream is woken."""
        if stream.ending:
            return
        left_s = max(0.0, until - self._clock.monotonic())
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(self._clock.sleep(left_s), name="stream timer")
            timer.add_done_callback(lambda _: stream.changed.set())
            await stream.changed.wait()
            timer.cancel()

    @contextmanager
    def _opened(self, method: str, key: str) -> Iterator[tuple[_Stream, float]]:
        """A registered stream and when it is to end. Raises _Failure beyond STREAMS_MAX.

        The oldest of too many streams for one object is asked to end.
        """
        if self._open.total() >= STREAMS_MAX:
            raise _Failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{STREAMS_MAX} streams are open, which is the most",
            )
        stream = _Stream(ending=self._closing)
        siblings = self._streams.setdefault((method, key), [])
        siblings.append(stream)
        self._open[method] += 1
        for surplus in siblings[:-STREAMS_PER_OBJECT_MAX]:
            surplus.end()
        lifetime_s = self._stream_s + self._random.random() * self._stream_jitter_s
        try:
            yield stream, self._clock.monotonic() + lifetime_s
        finally:
            self._open[method] -= 1
            siblings.remove(stream)
            if not siblings:
                del self._streams[method, key]


def _active(answer: Answer | None) -> bool | None:
    return None if answer is None else answer.active


def _specs() -> pb.GetMetricSpecResponse:
    """KEDA reads the float where it is above 0, else the int; KEDA up to 2.16 knows only the int."""
    spec = pb.MetricSpec(metricName=METRIC, targetSize=TARGET, targetSizeFloat=float(TARGET))
    return pb.GetMetricSpecResponse(metricSpecs=[spec])


def _value(answer: Answer) -> pb.GetMetricsResponse:
    """Exactly one value: the HPA adds up all that are returned. Raises _Failure where there is none."""
    desired = answer.desired
    if desired is None:
        raise _Failure(grpc.StatusCode.UNAVAILABLE, answer.reason)
    if not (math.isfinite(desired) and 0 <= desired <= VALUE_MAX):
        raise _Failure(
            grpc.StatusCode.INTERNAL,
            f"{desired} replicas were decided, which is not between 0 and {VALUE_MAX}: report this",
        )
    value = pb.MetricValue(
        metricName=METRIC, metricValue=int(desired), metricValueFloat=float(desired)
    )
    return pb.GetMetricsResponse(metricValues=[value])


class _Servicer(ExternalScalerServicer):
    """The five calls: each asks the scaler, counts its end, and turns a failure into its status."""

    def __init__(self, scaler: ExternalScaler) -> None:
        self._scaler = scaler

    async def GetMetricSpec(  # noqa: N802 - the name on the wire
        self, request: pb.ScaledObjectRef, context: Context
    ) -> pb.GetMetricSpecResponse:
        async with self._call("GetMetricSpec", context):
            self._scaler.check(request)
            return _specs()

    async def GetMetrics(  # noqa: N802 - the name on the wire
        self, request: pb.GetMetricsRequest, context: Context
    ) -> pb.GetMetricsResponse:
        async with self._call("GetMetrics", context):
            if not _METRIC_ASKED.fullmatch(request.metricName):
                raise _Failure(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"metric {trigger.quoted(request.metricName)} is not served: ask for {METRIC}",
                )
            return _value(self._scaler.answer(request.scaledObjectRef))

    async def IsActive(  # noqa: N802 - the name on the wire
        self, request: pb.ScaledObjectRef, context: Context
    ) -> pb.IsActiveResponse:
        async with self._call("IsActive", context):
            answer = self._scaler.answer(request)
            if answer.active is None:
                raise _Failure(grpc.StatusCode.UNAVAILABLE, answer.reason)
            return pb.IsActiveResponse(result=answer.active)

    async def StreamIsActive(  # noqa: N802 - the name on the wire
        self, request: pb.ScaledObjectRef, context: Context
    ) -> None:
        async def send(state: bool) -> None:
            await context.write(pb.IsActiveResponse(result=state))

        async with self._call("StreamIsActive", context):
            await self._scaler.follow_state(request, send)

    async def StreamMetricSpec(  # noqa: N802 - the name on the wire
        self, request: pb.ScaledObjectRef, context: Context
    ) -> None:
        async def send() -> None:
            await context.write(_specs())

        async with self._call("StreamMetricSpec", context):
            await self._scaler.follow_specs(request, send)

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[None]:
        code, sentence = grpc.StatusCode.OK, ""
        try:
            yield
        except _Failure as failure:
            code, sentence = failure.code, str(failure)
        except asyncio.CancelledError:
            self._scaler.count(method, grpc.StatusCode.CANCELLED)
            raise
        self._scaler.count(method, code)
        if code is not grpc.StatusCode.OK:
            await context.abort(code, sentence)

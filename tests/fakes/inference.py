"""Inference pods that serve nothing but metrics pages: vLLM and Triton, as a whole fleet in one process.

Each pod is a fluid queue (tests/fakes/pods.py) with a port of its own. It can be told to fail, to
hang, to write NaN, and to restart (its counters begin anew and the requests in it are lost).

As a process: `python -m tests.fakes.inference --server vllm --pods 3 --ports 0 --demand ramp:2,20,60,10`
prints one line of JSON with the addresses, and serves until SIGTERM. Over HTTP a pod obeys
`POST /fault/{none,error,hang,nan,empty}` and `POST /restart`.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from tests.fakes.pods import (
    FAULTS,
    DemandFunction,
    Kind,
    Pod,
    demand_of,
    triton_page,
    vllm_page,
)


class Fleet:
    """Pods of one server that share a demand, each on an address of its own."""

    def __init__(
        self,
        kind: Kind,
        *,
        pods: int,
        demand: DemandFunction,
        slots: int = 8,
        service_s: float = 0.5,
        name: str = "fleet",
        gauges_lag_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.kind: Kind = kind
        self.demand = demand
        self.clock = clock
        self.began_at = clock()
        self.pods = [
            Pod(
                name=f"{name}-{i}",
                slots=slots,
                service_s=service_s,
                began_at=self.began_at,
                gauges_lag_s=gauges_lag_s,
            )
            for i in range(pods)
        ]
        self.addresses: tuple[str, ...] = ()
        self._runners: list[web.AppRunner] = []

    def page(self, pod: Pod) -> str:
        """The pod's page at this moment."""
        count = len(self.pods)
        pod.advance(self.clock(), lambda t: self.demand(t - self.began_at) / count)
        return vllm_page(pod) if self.kind == "vllm" else triton_page(pod)

    async def start(self, ports: Sequence[int] = (), host: str = "127.0.0.1") -> None:
        """Listen, one port per pod; without ports the system chooses."""
        addresses = []
        for pod, port in zip(self.pods, ports or [0] * len(self.pods), strict=True):
            runner = web.AppRunner(self._application(pod), access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, host, port).start()
            self._runners.append(runner)
            addresses.append(f"http://{host}:{runner.addresses[0][1]}/metrics")
        self.addresses = tuple(addresses)

    async def close(self) -> None:
        """Stop listening."""
        for runner in self._runners:
            await runner.cleanup()

    def _application(self, pod: Pod) -> web.Application:
        async def metrics(_: web.Request) -> web.Response:
            if pod.fault == "error":
                return web.Response(status=500, text="engine is dead\n")
            if pod.fault == "hang":
                await asyncio.sleep(3600)
            text = "" if pod.fault == "empty" else self.page(pod)
            return web.Response(
                text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            )

        async def fault(request: web.Request) -> web.Response:
            kind = request.match_info["kind"]
            chosen = next((each for each in FAULTS if each == kind), None)
            if chosen is None:
                return web.Response(status=404, text=f"no fault {kind}\n")
            pod.fault = chosen
            return web.Response(text="ok\n")

        async def restart(_: web.Request) -> web.Response:
            pod.restart(self.clock())
            return web.Response(text="ok\n")

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        app.router.add_post("/fault/{kind}", fault)
        app.router.add_post("/restart", restart)
        return app


async def _serve(options: argparse.Namespace) -> None:
    fleet = Fleet(
        options.server,
        pods=options.pods,
        demand=demand_of(options.demand),
        slots=options.slots,
        service_s=options.service_s,
        name=options.name,
        gauges_lag_s=options.gauges_lag_s,
    )
    first = [int(port) for port in options.ports.split(",")]
    await fleet.start(first if len(first) == options.pods and any(first) else ())
    said = {"server": fleet.kind, "name": options.name, "addresses": list(fleet.addresses)}
    print(json.dumps(said), flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    await fleet.close()


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Fake inference pods.")
    parser.add_argument("--server", choices=("vllm", "triton"), required=True)
    parser.add_argument("--pods", type=int, default=3)
    parser.add_argument("--ports", default="0", help="0, or one port per pod, comma-separated")
    parser.add_argument("--demand", default="constant:10")
    parser.add_argument("--slots", type=int, default=8, help="requests that run at once in a pod")
    parser.add_argument("--service-s", type=float, default=0.5, help="seconds that a request runs")
    parser.add_argument("--gauges-lag-s", type=float, default=0.0)
    parser.add_argument("--name", default="fleet", help="pods are called NAME-0, NAME-1, …")
    asyncio.run(_serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs that run beside a test: started, paused, ended by their own process id, their output kept."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_S = 60.0
STOP_S = 20.0
STEP_S = 0.1


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on; held all at once, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_until(
    what: str, condition: Callable[[], object], within_s: float = START_S, step_s: float = STEP_S
) -> float:
    """Wait for the condition and return the seconds that it took. Fails with `what` and the last value."""
    began = time.monotonic()
    while True:
        last = condition()
        took = time.monotonic() - began
        if last:
            return took
        assert took < within_s, f"not within {within_s:g} s: {what} (last: {last!r})"
        time.sleep(step_s)


class Program:
    """One child process; what it prints goes to `log`, over restarts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(part) for part in command]
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **(environ or {})}
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], object] | None = None, within_s: float = START_S) -> None:
        """Start it and wait until it is ready. Fails with the end of its log."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environ, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        if ready is not None:
            wait_until(f"{self.name} is ready", lambda: self.alive() and ready(), within_s)

    def alive(self) -> bool:
        """True while it runs. Fails where it ended by itself."""
        child = self._child
        assert child is not None, f"{self.name} was not started"
        assert child.poll() is None, f"{self.name} ended ({child.returncode}): {self.tail()}"
        return True

    def tail(self, size: int = 4000) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def stop(self) -> int:
        """Ask it to end, and see that it does; its exit code."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def kill(self) -> None:
        """End it without a word, as a machine that dies."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    def pause(self) -> None:
        """Freeze it: its connections stay open and silent."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

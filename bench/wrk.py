"""Load by wrk: requests as fast as the proxy answers, or at a fixed rate; and what wrk says at the end."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
from bench.table import Row

_PAUSES = "function delay() return math.random(0, {longest}) end\n"
"""Pauses before each request of a connection, in milliseconds."""


class Load(msgspec.Struct, frozen=True):
    """What wrk says: requests a second, p99 in milliseconds, failures, requests in all."""

    rate: float
    p99_ms: float
    failed: int
    requests: int


class Client(msgspec.Struct, frozen=True):
    """Who asks for what: a URL, the host in the header, connections; with ``pauses`` a script between requests."""

    url: str
    host: str
    connections: int = 64
    pauses: Path | None = None

    def command(self, seconds: int) -> list[str]:
        """The command line of wrk."""
        script = ["-s", str(self.pauses)] if self.pauses is not None else []
        options = [f"-c{self.connections}", f"-d{seconds}s", "--timeout", "30s", "--latency", *script]
        return ["wrk", "-t1", *options, "-H", f"Host: {self.host}", self.url]

    def ask(self, seconds: int) -> Load:
        """Asks for a while."""
        return read(subprocess.run(self.command(seconds), capture_output=True, text=True, check=True).stdout)

    def ask_during(self, work: Callable[[], None]) -> Load:
        """Asks until the work is done."""
        process = subprocess.Popen(self.command(3600), stdout=subprocess.PIPE, text=True)
        try:
            work()
        finally:
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=60)
        return read(text)


def pauses_of(folder: Path, rate: int, connections: int) -> Path:
    """The script with which connections together send a number of requests a second, each after a random pause."""
    file = folder / f"pauses-{rate}.lua"
    file.write_text(_PAUSES.format(longest=round(2000 * connections / rate)), encoding="utf-8")
    return file


def read(text: str) -> Load:
    """What wrk has printed."""
    numbers = re.search(r"99%\s+([\d.]+)(us|ms|s|m)", text)
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert numbers is not None and requests is not None and rate is not None, text
    scale = {"us": 0.001, "ms": 1, "s": 1000, "m": 60000}[numbers[2]]
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    failed = int(bad[1]) if bad else 0
    failed += sum(int(number) for number in broken.groups()) if broken else 0
    return Load(float(rate[1]), float(numbers[1]) * scale, failed, int(requests[1]))


def failed_row(while_what: str, load: Load, aim: float | None = None) -> Row:
    """The row of failed requests while something happens."""
    return Row(f"failed requests while {while_what} (of {load.requests:,})", "", (float(load.failed),), aim=aim)

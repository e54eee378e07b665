"""The gateway's engine (Envoy, fed by podwire) beside haproxy and nginx with the same host and path.

All three forward on loopback from one worker to one nginx that answers 100 bytes; wrk asks over 64 connections that
stay open, in turns, and none writes an access log. CPU is that of the proxy alone, for each request. A change goes
into the entry of the gateway and is measured until the first answer shows it: endpoints of one Service, and one more
host, with few routes and with 1,000. An Ingress and an HTTPRoute with one more host are measured from their objects on,
through the API and the controllers (bench/gateway_objects.py). A replacement is 100 changes of endpoints, hosts,
certificates (over TLS) or listeners under load; answers other than 200 and broken connections are counted. nginx
reloads for each, as its Ingress controllers do for routes. That engines are replaced and gateways killed without a lost
request is shown by tests/e2e/test_gateway.py.

    sudo python -m bench.gateway [--quick]
"""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from bench.alone import run_alone
from bench.gateway_objects import new_objects
from bench.machine import cpu_s, resident_mb
from bench.table import Row
from tests.kernel.gateway_engine import SETTINGS, ClientRequest, Engine, certificate_for, free_port

from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    Retry,
    RouteTable,
    TlsServer,
    VirtualHost,
    WeightedBackend,
)

HOST = "web.example"
CHANGES = 100
Change = Callable[[int], None]

_BACKEND = """
worker_processes 1; daemon off; pid {folder}/backend.pid; error_log {folder}/backend.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  server {{ listen {ports}; location / {{ return 200 "{body}"; }} }}
}}
"""
_NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  upstream web {{ server 127.0.0.1:{backend}; keepalive 320; }}
  server {{
    listen 127.0.0.1:{port}; server_name web.example;
    location / {{ proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend web
  bind 127.0.0.1:{port}
  use_backend web if {{ hdr(host) -i web.example }}
backend web
  server one 127.0.0.1:{backend}
"""


def entry(port: int, endpoints: tuple[EntryEndpoint, ...], hosts: int = 0) -> GatewayEntry:
    """One host that is asked, and more with a backend each."""
    names = [HOST, *(f"host-{number}.example" for number in range(hosts))]
    backends = {
        f"bench/{name}:80": EntryBackend(key=f"bench/{name}:80", endpoints=endpoints if name == HOST else endpoints[:1])
        for name in names
    }
    table = RouteTable(name="web", hosts=tuple(_host(name) for name in names))
    listener = EntryListener(name="web", port=port, protocol="HTTP", table="web")
    return GatewayEntry(listeners=(listener,), tables={"web": table}, backends=backends)


def secure_entry(
    ports: tuple[int, ...], endpoints: tuple[EntryEndpoint, ...], certificate: Certificate
) -> GatewayEntry:
    """The same host over TLS with a certificate, at the first port; the others are plain."""
    plain = entry(ports[0], endpoints)
    server = TlsServer(names=(), certificates=(certificate.name,), table="web")
    secure = EntryListener(name="secure", port=ports[0], protocol="HTTPS", servers=(server,))
    others = tuple(EntryListener(name=f"web-{port}", port=port, protocol="HTTP", table="web") for port in ports[1:])
    return msgspec.structs.replace(plain, listeners=(secure, *others), certificates={certificate.name: certificate})


def _host(name: str) -> VirtualHost:
    forward = Forward(backends=(WeightedBackend(key=f"bench/{name}:80"),), timeout=60, retry=Retry(attempts=2))
    return VirtualHost(hosts=(name,), routes=(EntryRoute(source=name, match=RequestMatch(), action=forward),))


class Load(msgspec.Struct, frozen=True):
    """What wrk says: requests a second, p99 in milliseconds, failures, requests in all."""

    rate: float
    p99_ms: float
    failed: int
    requests: int


def ask(port: int, seconds: int, connections: int = 64, scheme: str = "http") -> Load:
    """Asks for a while."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-H", f"Host: {HOST}"]
    text = subprocess.run(
        [*command, f"{scheme}://127.0.0.1:{port}/"], capture_output=True, text=True, check=True
    ).stdout
    numbers = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    assert numbers is not None, text
    scale = {"us": 0.001, "ms": 1, "s": 1000}[numbers[2]]
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    failed = int(bad[1]) if bad else 0
    failed += sum(int(number) for number in broken.groups()) if broken else 0
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert requests is not None and rate is not None, text
    return Load(float(rate[1]), float(numbers[1]) * scale, failed, int(requests[1]))


@contextmanager
def program(arguments: list[str], port: int) -> Iterator[int]:
    """A server until the end of the block; gives the process that serves."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _answers(port)
        yield _worker(process.pid)
    finally:
        process.terminate()
        process.wait()


def _worker(pid: int) -> int:
    """The only child of a master, or the process itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[-1]) if children else pid


def _answers(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            ask(port, 1, 1)
        except (subprocess.CalledProcessError, AssertionError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nothing answers on port {port}")


def _speed(proxies: dict[str, tuple[int, int]], runs: int, seconds: int) -> list[Row]:
    """Rate, CPU and latency of each proxy, in turns; a proxy is its port and its process."""
    rates: dict[str, list[float]] = {name: [] for name in proxies}
    costs: dict[str, list[float]] = {name: [] for name in proxies}
    delays: dict[str, list[float]] = {name: [] for name in proxies}
    for _ in range(runs):
        for name, (port, pid) in proxies.items():
            before = cpu_s(pid)
            load = ask(port, seconds)
            rates[name].append(load.rate)
            costs[name].append((cpu_s(pid) - before) / load.requests * 1e6)
            delays[name].append(load.p99_ms)
    memory = {name: [resident_mb(pid)[0]] for name, (_, pid) in proxies.items()}
    measured = (
        ("requests", "/s", rates),
        ("CPU for a request", "us", costs),
        ("p99 at full load", "ms", delays),
        ("memory of the proxy", "MB", memory),
    )
    return [
        Row(
            what, unit, tuple(values["envoy"]), tuple((name, tuple(v)) for name, v in values.items() if name != "envoy")
        )
        for what, unit, values in measured
    ]


def _effects(engine: Engine, port: int, endpoints: tuple[EntryEndpoint, ...], hosts: int, runs: int) -> list[Row]:
    """From a change of the entry to the first answer that shows it."""
    shown: list[float] = []
    added: list[float] = []
    engine.serve(entry(port, endpoints[:1], hosts))
    for number in range(runs):
        wanted = endpoints[number % 2 : number % 2 + 1]
        begun = time.perf_counter()
        engine.serve_endpoints(entry(port, wanted).backends)
        answer = engine.ask(port, ClientRequest(host=HOST))
        assert answer.status == 200
        shown.append((time.perf_counter() - begun) * 1000)
        begun = time.perf_counter()
        engine.serve(entry(port, wanted, hosts + 1 + number % 2))
        assert engine.ask(port, ClientRequest(host=f"host-{hosts}.example")).status == 200
        added.append((time.perf_counter() - begun) * 1000)
    return [
        Row(f"endpoints to the first answer, {hosts + 1} hosts", "ms", tuple(shown)),
        Row(f"a new host to its first answer, {hosts + 1} hosts", "ms", tuple(added)),
    ]


def _failures(port: int, change: Change, seconds: int, scheme: str = "http") -> tuple[int, int]:
    """Requests and failed ones while changes are made one after another."""
    ending = threading.Event()
    loads: list[Load] = []

    def load() -> None:
        loads.append(ask(port, seconds, 32, scheme))
        ending.set()

    thread = threading.Thread(target=load)
    thread.start()
    number = 0
    while not ending.wait(seconds / (CHANGES + 5)) and number < CHANGES:
        change(number)
        number += 1
    thread.join()
    return loads[0].requests, loads[0].failed


def run(quick: bool) -> list[Row]:
    """All measurements."""
    runs, seconds = (2, 2) if quick else (5, 4)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="gateway")))
        backend, other = free_port(), free_port()
        listens = f"127.0.0.1:{backend}; listen 127.0.0.1:{other}"
        _write(folder / "backend.conf", _BACKEND.format(folder=folder, ports=listens, body="x" * 100))
        nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin")
        haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
        assert nginx is not None, "nginx is missing: it is the backend"
        stack.enter_context(program([nginx, "-c", str(folder / "backend.conf")], backend))
        engine = Engine(folder, msgspec.structs.replace(SETTINGS, access_log="/dev/null"))
        stack.callback(engine.close)
        port = free_port()
        endpoints = tuple(EntryEndpoint(address="127.0.0.1", port=number) for number in (backend, other))
        engine.serve(entry(port, endpoints[:1]))
        proxies = {"envoy": (port, engine.pid)}
        nginx_port = free_port()
        _write(folder / "nginx.conf", _NGINX.format(folder=folder, port=nginx_port, backend=backend))
        worker = stack.enter_context(program([nginx, "-c", str(folder / "nginx.conf")], nginx_port))
        proxies["nginx"] = (nginx_port, worker)
        if haproxy is not None:
            haproxy_port = free_port()
            _write(folder / "haproxy.conf", _HAPROXY.format(port=haproxy_port, backend=backend))
            worker = stack.enter_context(program([haproxy, "-db", "-f", str(folder / "haproxy.conf")], haproxy_port))
            proxies["haproxy"] = (haproxy_port, worker)
        rows = _speed(proxies, runs, seconds)
        for hosts in (9, 99) if quick else (9, 999):
            rows += _effects(engine, port, endpoints, hosts, 4 if quick else 20)
            times = new_objects(engine, backend, hosts + 1, 4 if quick else 20)
            rows += [
                Row(f"a new {kind} to its first answer, {hosts + 1} hosts", "ms", tuple(t)) for kind, t in times.items()
            ]
        reload = [nginx, "-c", str(folder / "nginx.conf"), "-s", "reload"]
        beside = _failures(nginx_port, lambda _number: _run(reload), 5 if quick else 20)
        return [*rows, *_loss_rows(engine, port, endpoints, beside, 5 if quick else 20)]


def _loss_rows(
    engine: Engine, port: int, endpoints: tuple[EntryEndpoint, ...], beside: tuple[int, int], length: int
) -> list[Row]:
    """Failed requests while the configuration changes; ``beside``: all requests of nginx, and the failed ones."""

    def endpoints_change(number: int) -> None:
        engine.serve(entry(port, endpoints[number % 2 : number % 2 + 1]))

    def hosts_change(number: int) -> None:
        engine.serve(entry(port, endpoints[:1], number % 10))

    certificates = [msgspec.structs.replace(certificate_for("web", (HOST,)), name="web") for _ in range(2)]
    secure, more = free_port(), free_port()

    def certificates_change(number: int) -> None:
        engine.serve(secure_entry((secure,), endpoints[:1], certificates[number % 2]))

    def listeners_change(number: int) -> None:
        engine.serve(secure_entry((secure, more)[: 1 + number % 2], endpoints[:1], certificates[0]))

    rows: list[Row] = []
    plain, over_tls = (port, "http"), (secure, "https")
    changes = (
        ("endpoints", endpoints_change, plain),
        ("hosts", hosts_change, plain),
        ("certificates", certificates_change, over_tls),
        ("listeners", listeners_change, over_tls),
    )
    for what, change, (asked, scheme) in changes:
        change(0)
        requests, failed = _failures(asked, change, length, scheme)
        rows.append(
            Row(
                f"failed requests while {what} change {CHANGES} times (of {requests:,}; nginx of {beside[0]:,})",
                "",
                (float(failed),),
                (("nginx", (float(beside[1]),)),),
                aim=0,
            )
        )
    return rows


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_alone("gateway", __doc__, run)

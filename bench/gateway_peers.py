"""haproxy and nginx beside the gateway's engine, each with the same hosts and endpoints.

A change of hosts is a reload, as their Ingress controllers make it; haproxy hands its listening sockets to the next
process. A change of endpoints is a reload of nginx, and a command of haproxy's runtime API.
"""

import http.client
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.ports import free_port

HOST = "web.example"
"""The host that is asked."""
_PATH = "/usr/sbin:/usr/bin"
_BACKEND = """
worker_processes 1; daemon off; pid {folder}/backend.pid; error_log {folder}/backend.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  server {{ listen {listens}; location / {{ return 200 "{body} $host $server_port"; }} }}
}}
"""
_NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  server_names_hash_max_size 4096; server_names_hash_bucket_size 128;
  server {{ listen 127.0.0.1:{port} default_server; return 404; }}
  {hosts}
}}
"""
_NGINX_HOST = """
  upstream {host} {{ server 127.0.0.1:{endpoint}; keepalive 320; }}
  server {{
    listen 127.0.0.1:{port}; server_name {host};
    location / {{ proxy_pass http://{host}; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 4096
  stats socket {folder}/haproxy.sock mode 600 level admin expose-fd listeners
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend web
  bind 127.0.0.1:{port}
  use_backend %[hdr(host),lower]
{hosts}
"""
_HAPROXY_HOST = """
backend {host}
  server one 127.0.0.1:{endpoint}
"""


def names(hosts: int) -> list[str]:
    """The host that is asked, and so many more."""
    return [HOST, *(f"host-{number}.example" for number in range(hosts))]


class ReloadedProxy:
    """A program with a master process, a configuration file, and a signal that makes it read the file again."""

    def __init__(self, command: list[str], file: Path, form: tuple[str, str], reload_signal: signal.Signals) -> None:
        """``form`` is the text of the file and that of each host."""
        self.port = free_port()
        self._command = command
        self._file = file
        self._form = form
        self._signal = reload_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def worker(self) -> int:
        """The process that serves: the newest child of the master."""
        assert self._process is not None
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])

    def write(self, hosts: int, endpoint: int) -> None:
        """Writes the configuration: the endpoint of the host that is asked, and so many more hosts with the same."""
        whole, each = self._form
        texts = (each.format(host=name, port=self.port, endpoint=endpoint) for name in names(hosts))
        text = whole.format(folder=self._file.parent, port=self.port, hosts="".join(texts))
        self._file.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Starts the program and waits until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_answered(self.port, HOST)

    def reload(self) -> None:
        """Makes the program read its file; returns at once."""
        assert self._process is not None
        self._process.send_signal(self._signal)

    def close(self) -> None:
        """Ends the program."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class Peer:
    """A proxy beside the engine, and how its endpoints change."""

    def __init__(self, name: str, proxy: ReloadedProxy, runtime: Path | None = None) -> None:
        """``runtime`` is the socket on which the proxy takes commands; without one, endpoints change by a reload."""
        self.name = name
        self.proxy = proxy
        self._runtime = runtime
        self._hosts = 0

    def serve(self, hosts: int, endpoint: int) -> None:
        """Serves so many more hosts."""
        self._hosts = hosts
        self.proxy.write(hosts, endpoint)
        self.proxy.reload()
        until_answered(self.proxy.port, names(hosts)[-1])

    def set_endpoint(self, endpoint: int) -> None:
        """Replaces the endpoint of the host that is asked."""
        if self._runtime is None:
            self.proxy.write(self._hosts, endpoint)
            self.proxy.reload()
            return
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._runtime))
            connection.sendall(f"set server {HOST}/one addr 127.0.0.1 port {endpoint}\n".encode())
            connection.recv(4096)


@contextmanager
def backend(folder: Path, ports: tuple[int, ...]) -> Iterator[None]:
    """A server at ports that answers 100 bytes, which end with the host that it was asked for, and its port.

    nginx forwards the name of its own host, so a host that another one answers for shows. haproxy and Envoy answer
    503 and 404 for a host that they do not know yet.
    """
    listens = "; listen ".join(f"127.0.0.1:{port}" for port in ports)
    (folder / "backend.conf").write_text(_BACKEND.format(folder=folder, listens=listens, body="x" * 82))
    process = subprocess.Popen([_program("nginx"), "-c", str(folder / "backend.conf")], stderr=subprocess.DEVNULL)
    try:
        until_answered(ports[0], HOST)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def peers(folder: Path, endpoint: int) -> Iterator[list[Peer]]:
    """nginx and haproxy with one host."""
    nginx = [_program("nginx"), "-c", str(folder / "nginx.conf")]
    haproxy = [_program("haproxy"), "-W", "-db", "-f", str(folder / "haproxy.conf")]
    forms = {"nginx": (_NGINX, _NGINX_HOST), "haproxy": (_HAPROXY, _HAPROXY_HOST)}
    started = [
        Peer("nginx", ReloadedProxy(nginx, folder / "nginx.conf", forms["nginx"], signal.SIGHUP)),
        Peer(
            "haproxy",
            ReloadedProxy(haproxy, folder / "haproxy.conf", forms["haproxy"], signal.SIGUSR2),
            folder / "haproxy.sock",
        ),
    ]
    try:
        for peer in started:
            peer.proxy.write(0, endpoint)
            peer.proxy.start()
        yield started
    finally:
        for peer in started:
            peer.proxy.close()


def _program(name: str) -> str:
    program = shutil.which(name, path=_PATH)
    assert program is not None, f"{name} is missing: scripts/setup --bench installs it"
    return program


def answer(port: int, host: str) -> tuple[int, bytes]:
    """The status and the body of an answer on a new connection; status 0 without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/", headers={"Host": host})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def is_from(body: bytes, host: str, endpoint: int = 0) -> bool:
    """Whether an answer is that of a host, and of an endpoint, by its port, or of any."""
    _, named, port = body.decode().split()
    return named == host and (not endpoint or port == str(endpoint))


def until_answered(port: int, host: str, endpoint: int = 0) -> None:
    """Asks until the answer is that of an endpoint, by its port, or of any."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status, body = answer(port, host)
        if status == 200 and is_from(body, host, endpoint):
            return
        time.sleep(0.0005)
    raise TimeoutError(f"port {port} does not answer for {host}, the last answer was {status} {body!r}")


def milliseconds(change: Callable[[], None], port: int, host: str, endpoint: int) -> float:
    """From the begin of a change to the first answer of an endpoint."""
    begun = time.perf_counter()
    change()
    until_answered(port, host, endpoint)
    return (time.perf_counter() - begun) * 1000

"""The DNS server as a process whose worker is killed: no query is lost, and no name is forgotten."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dns.exception
import dns.message
import dns.query
import dns.rcode
from tests.fakes.certificates import make_certificate
from tests.fakes.ports import free_port
from tests.fakes.silent_api import SilentApi, silent_api

NAME = "web-7.shop.svc.cluster.local"


def a_service(index: int) -> dict[str, Any]:
    meta = {"name": f"web-{index}", "namespace": "shop", "resourceVersion": "1", "uid": f"u{index}"}
    return {"metadata": meta, "spec": {"clusterIP": f"10.96.0.{index}", "ports": [{"port": 80}]}}


LISTED = {
    "services": [a_service(index) for index in range(1, 50)],
    "namespaces": [{"metadata": {"name": "shop", "resourceVersion": "1", "uid": "n"}}],
}


class Server:
    """A running server; ``pid`` is the process that holds the sockets."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port

    def worker(self) -> int:
        """The process that answers; 0 while there is none."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill_worker(self) -> None:
        """Kills the process that answers, and returns when another one has taken its place."""
        while not (victim := self.worker()):
            time.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        while self.worker() in (0, victim):
            time.sleep(0.001)

    def ask(self, name: str = NAME, timeout_s: float = 10.0) -> dns.message.Message:
        return dns.query.udp(dns.message.make_query(name, "A"), "127.0.0.1", timeout=timeout_s, port=self.port)


@contextmanager
def serving(api: SilentApi, folder: Path, corefile: str = "") -> Iterator[Server]:
    port = free_port()
    kubeconfig, config = folder / "kubeconfig", folder / "config"
    kubeconfig.write_text(api.kubeconfig())
    ports = {field: free_port() for field in ("healthPort", "readyPort", "metricsPort")}
    document = {"listen": ["127.0.0.1"], "port": port, "resolvConf": "/nonexistent", "kubeconfig": str(kubeconfig)}
    config.write_text(corefile.replace("PORT", str(port)) or json.dumps(document | ports))
    command = [sys.executable, "-m", "podwire.cli.main", "dns", "--corefile" if corefile else "--config", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--kubeconfig", str(kubeconfig)], stdout=log, stderr=log)
    try:
        server = Server(process, port)
        # A missing name is SERVFAIL before all lists are there.
        while not _answers(server):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 143), (folder / "log").read_text()
        assert "Traceback" not in (folder / "log").read_text()


def _answers(server: Server) -> bool:
    try:
        return server.ask("missing.shop.svc.cluster.local", timeout_s=0.2).rcode() == dns.rcode.NXDOMAIN
    except (OSError, dns.exception.Timeout):
        return False


def test_killed_worker_remembers_its_names_while_the_api_is_silent(tmp_path: Path) -> None:
    with silent_api(LISTED) as api, serving(api, tmp_path) as server:
        api.silence.set()
        for _ in range(3):
            server.kill_worker()
            assert server.ask().answer[0][0].to_text() == "10.96.0.7"
            assert server.ask("missing.shop.svc.cluster.local").rcode() == dns.rcode.NXDOMAIN


COREFILE = """.:PORT {
    bind 127.0.0.1
    kubernetes cluster.local {
        ttl 7
    }
    reload 1100ms
}
"""


def test_changed_corefile_is_applied_and_a_wrong_one_not(tmp_path: Path) -> None:
    with silent_api(LISTED) as api, serving(api, tmp_path, COREFILE) as server:
        api.silence.set()
        file = tmp_path / "config"
        valid = file.read_text()
        assert server.ask().answer[0].ttl == 7
        file.write_text(valid.replace("ttl 7", "ttl seven"))
        while "the old one stays in force" not in (tmp_path / "log").read_text():
            assert server.ask().answer[0].ttl == 7
            time.sleep(0.02)
        assert "line 4: ttl: expected a whole number, got 'seven'" in (tmp_path / "log").read_text()
        server.kill_worker()
        assert server.ask().answer[0].ttl == 7
        file.write_text(valid.replace("ttl 7", "ttl 9"))
        while server.ask().answer[0].ttl != 9:
            time.sleep(0.02)


def test_tls_survives_workers_and_follows_its_certificate(tmp_path: Path) -> None:
    secure, files = free_port(), (tmp_path / "certificate", tmp_path / "key")

    def write_certificate() -> None:
        for path, text in zip(files, make_certificate("dns.example"), strict=True):
            path.write_text(text)
        (tmp_path / "trusted").write_text(files[0].read_text())

    def ask() -> dns.message.Message:
        query = dns.message.make_query(NAME, "A")
        context = ssl.create_default_context(cafile=tmp_path / "trusted")
        return dns.query.tls(
            query, "127.0.0.1", port=secure, timeout=10, server_hostname="dns.example", ssl_context=context
        )

    write_certificate()
    keys = f".:PORT tls://.:{secure} {{\n    tls {files[0]} {files[1]}\n"
    with silent_api(LISTED) as api, serving(api, tmp_path, COREFILE.replace(".:PORT {\n", keys)) as server:
        api.silence.set()
        for _ in range(2):
            assert ask().answer[0][0].to_text() == "10.96.0.7"
            server.kill_worker()
        write_certificate()
        while True:
            try:
                assert ask().answer
                break
            except (ssl.SSLError, EOFError, ConnectionError):
                time.sleep(0.05)


def test_no_query_is_lost_over_kills_and_restarts(tmp_path: Path) -> None:
    """Asks 100,000 times without repetition, 100 queries at a time, while workers are killed or replaced."""
    with (
        silent_api(LISTED) as api,
        serving(api, tmp_path, COREFILE) as server,
        socket.socket(type=socket.SOCK_DGRAM) as link,
    ):
        link.connect(("127.0.0.1", server.port))
        link.settimeout(20)
        file = tmp_path / "config"
        texts = [file.read_text(), file.read_text().replace("ttl 7", "ttl 8")]
        tail = dns.message.make_query(NAME, "A").to_wire()[2:]
        unanswered, workers = set(), {server.worker()}
        for number in range(100_000):
            ident = number % 50_000
            unanswered.add(ident)
            link.send(ident.to_bytes(2, "big") + tail)
            if number % 10_000 == 1000:
                server.kill_worker()
                workers.add(server.worker())
            if number % 40_000 == 5000:
                texts.reverse()
                file.write_text(texts[0])
            while len(unanswered) > 100:
                unanswered.discard(int.from_bytes(link.recv(2), "big"))
        while unanswered:
            unanswered.discard(int.from_bytes(link.recv(2), "big"))
        assert len(workers) > 10


WITH_PLUGINS = """.:PORT {
    bind 127.0.0.1
    rewrite name short.example web-7.shop.svc.cluster.local
    acl {
        block type A net 192.0.2.0/24
    }
    kubernetes cluster.local
    file zone example.org
    reload 1100ms
}
"""
_ZONE = "$TTL 60\n@ IN SOA ns hostmaster 1 2 3 4 5\nwww A 192.0.2.1\n"


def test_plugins_and_zone_files_survive_workers_and_follow_changes(tmp_path: Path) -> None:
    (tmp_path / "zone").write_text(_ZONE)
    with silent_api(LISTED) as api, serving(api, tmp_path, WITH_PLUGINS) as server:
        api.silence.set()
        server.kill_worker()
        assert [str(record) for record in server.ask("short.example").answer[0]] == ["10.96.0.7"]
        assert [str(record) for record in server.ask("www.example.org").answer[0]] == ["192.0.2.1"]
        (tmp_path / "zone").write_text(_ZONE.replace("www A 192.0.2.1", "www A nowhere"))
        while "the old one stays in force" not in (tmp_path / "log").read_text():
            assert [str(record) for record in server.ask("www.example.org").answer[0]] == ["192.0.2.1"]
            time.sleep(0.02)
        (tmp_path / "zone").write_text(_ZONE.replace("192.0.2.1", "192.0.2.2"))
        while [str(record) for record in server.ask("www.example.org").answer[0]] != ["192.0.2.2"]:
            time.sleep(0.02)

"""Acknowledged writes survive kill -9 of the API server, and a full disk loses no data."""

import datetime
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import eventually

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.server import render_settings
from podwire.embedded.apiserver.settings import ApiServerSettings

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


class ApiProcess:
    """An API server process with its state in a given folder."""

    def __init__(self, directory: Path, state: Path) -> None:
        self.directory = directory
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        now = datetime.datetime.now(datetime.UTC)
        authority = certificates.make_authority("test", now)
        certificates.write_pair(directory, "ca", authority)
        pair = certificates.issue(authority, "apiserver", (), ("127.0.0.1",), "server", now)
        server = certificates.write_pair(directory, "server", pair)
        pair = certificates.issue(authority, "admin", ("system:masters",), (), "client", now)
        self.admin = certificates.write_pair(directory, "admin", pair)
        certificates.write_private(directory / "signing.key", certificates.make_signing_key())
        settings = ApiServerSettings(
            listen=(f"127.0.0.1:{self.port}",),
            state=state / "api.db",
            certificate=server[0],
            key=server[1],
            client_ca=directory / "ca.crt",
            signing_key=directory / "signing.key",
        )
        self.settings = directory / "settings.yaml"
        self.settings.write_bytes(render_settings(settings))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "podwire.embedded.apiserver.server",
                "--config",
                str(self.settings),
                "--log-level",
                "error",
            ]
        )
        eventually(self._ready)

    def _ready(self) -> bool:
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()
        self.process = None

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        context.load_cert_chain(*self.admin)
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            return send(connection, method, path, body)
        finally:
            connection.close()


def send(connection: http.client.HTTPSConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text.startswith(b"{") else text


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    server = ApiProcess(tmp_path / "config", tmp_path / "state")
    server.start()
    yield server
    if server.process is not None:
        server.kill(signal.SIGTERM)


def test_kill_loses_no_acknowledged_write(api: ApiProcess) -> None:
    acknowledged: dict[str, int] = {}
    stop = threading.Event()

    def write(worker: int) -> None:
        connection = api.connect()
        try:
            for number in range(100_000):
                if stop.is_set():
                    return
                name = f"c-{len(acknowledged)}-{worker}-{number}"
                status, built = send(
                    connection, "POST", CONFIGMAPS, {"metadata": {"name": name}, "data": {"x": "y" * 500}}
                )
                assert status == 201
                acknowledged[name] = int(built["metadata"]["resourceVersion"])
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    highest = 0
    for _ in range(3):
        threads = [threading.Thread(target=write, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        expected = len(acknowledged) + 100
        eventually(lambda desired=expected: len(acknowledged) >= desired, every=0.01)
        api.kill()
        stop.set()
        for thread in threads:
            thread.join()
        stop.clear()
        api.start()
        _, result = api.request("GET", CONFIGMAPS)
        saved = {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in result["items"]}
        assert {name: saved.get(name) for name in acknowledged} == acknowledged
        assert int(result["metadata"]["resourceVersion"]) >= max(acknowledged.values())
        _, created = api.request("POST", CONFIGMAPS, {"metadata": {"generateName": "after-"}})
        highest, before = int(created["metadata"]["resourceVersion"]), highest
        assert highest > max(before, *acknowledged.values())


def test_a_second_server_on_the_same_state_is_refused(api: ApiProcess) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "podwire.embedded.apiserver.server", "--config", str(api.settings)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert second.returncode == 1
    assert "another API server uses it" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "podwire-test", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_writes_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    api = ApiProcess(tmp_path / "config", small_disk / "state")
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (1 << 20))
    api.start()
    try:
        connection = api.connect()
        acknowledged: dict[str, str] = {}
        status = 0
        answer: dict[str, Any] = {}
        for number in range(200):
            body: dict[str, Any] = {"metadata": {"name": f"c-{number}"}, "data": {"x": "y" * 20_000}}
            status, answer = send(connection, "POST", CONFIGMAPS, body)
            if status != 201:
                break
            acknowledged[f"c-{number}"] = answer["metadata"]["resourceVersion"]
        assert status == 507
        assert answer["kind"] == "Status" and "nothing changed" in answer["message"]
        assert stored_versions(connection) == acknowledged
        body = {"metadata": {"name": "service"}, "spec": {"ports": [{"port": 80}]}}
        assert send(connection, "POST", "/api/v1/namespaces/default/services", body)[0] in (201, 507)
        filler.unlink()
        status, answer = send(
            connection, "POST", CONFIGMAPS, {"metadata": {"name": "after"}, "data": {"x": "y" * 20_000}}
        )
        assert status == 201
        acknowledged["after"] = answer["metadata"]["resourceVersion"]
        connection.close()
        api.kill()
        api.start()
        connection = api.connect()
        assert stored_versions(connection) == acknowledged
        connection.close()
    finally:
        if api.process is not None:
            api.kill(signal.SIGTERM)


def stored_versions(connection: http.client.HTTPSConnection) -> dict[str, str]:
    _, result = send(connection, "GET", CONFIGMAPS)
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in result["items"]}

"""The CNI program, compiled and in Python, against a socket of the test's own."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podwire.cni import program, protocol

SHIM = Path(program.__file__).with_name("shim.py")
PROGRAMS = [
    pytest.param([str(program.path())], id="compiled"),
    pytest.param([sys.executable, "-I", "-S", str(SHIM)], id="python"),
]
if (EMULATOR := shutil.which("qemu-aarch64-static")) and os.uname().machine != "aarch64":
    PROGRAMS.append(pytest.param([EMULATOR, str(SHIM.parent / "bin/podwire-cni-aarch64")], id="arm64"))
CONF = b'{"cniVersion": "1.1.0", "name": "podwire"}'


class Agent:
    """Answers one request after the other with what a function makes of it."""

    def __init__(self, path: Path, answer: Callable[[dict[str, str], bytes], bytes]) -> None:
        self.path = path
        self.descriptors: list[int] = []
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                message = b""
                while True:
                    piece, fds, _, _ = socket.recv_fds(connection, 65536, 4)
                    self.descriptors.extend(fds)
                    if not piece:
                        break
                    message += piece
                if (answer := self._answer(*protocol.split(message))) == b"end":
                    return
                connection.sendall(answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for descriptor in self.descriptors:
            os.close(descriptor)


def run(argv: list[str], environment: dict[str, str], stdin: bytes = CONF) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, env=environment, input=stdin, capture_output=True, timeout=120, check=False)


def echo(environment: dict[str, str], stdin: bytes) -> bytes:
    return b"\3" + json.dumps([environment, stdin.decode()]).encode()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    item = Agent(tmp_path / "cni.sock", echo)
    yield item
    item.close()


@pytest.mark.parametrize("argv", PROGRAMS)
class TestProgram:
    def test_without_command_prints_its_purpose(self, argv: list[str]) -> None:
        done = run(argv, {})
        assert (done.returncode, done.stdout) == (0, b"")
        assert b"podwire" in done.stderr and b"1.1.0" in done.stderr

    def test_version_needs_no_agent(self, argv: list[str]) -> None:
        done = run(argv, {"CNI_COMMAND": "VERSION", "PODWIRE_CNI_SOCKET": "/nonexistent"})
        assert done.returncode == 0
        assert json.loads(done.stdout)["supportedVersions"][0] == "0.1.0"

    def test_hands_over_and_prints(self, argv: list[str], agent: Agent, tmp_path: Path) -> None:
        netns = tmp_path / "netns"
        netns.touch()
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_NETNS": str(netns),
            "CNI_ARGS": "A=1;B=zwölf",
            "SECRET": "no concern of the agent's",
            "PODWIRE_CNI_SOCKET": str(agent.path),
        }
        done = run(argv, environment)
        assert done.returncode == 3
        observed, stdin = json.loads(done.stdout)
        assert observed == {name: value for name, value in environment.items() if name.startswith("CNI_")}
        assert stdin.encode() == CONF
        assert [os.fstat(fd).st_ino for fd in agent.descriptors] == [netns.stat().st_ino]

    def test_large_configuration(self, argv: list[str], agent: Agent) -> None:
        stdin = json.dumps({"name": "x" * 3_000_000}).encode()
        done = run(argv, {"CNI_COMMAND": "DEL", "PODWIRE_CNI_SOCKET": str(agent.path)}, stdin)
        assert json.loads(done.stdout)[1].encode() == stdin
        assert agent.descriptors == []

    def test_waits_for_an_agent_that_restarts(self, argv: list[str], tmp_path: Path) -> None:
        path = tmp_path / "cni.sock"
        late: list[Agent] = []
        timer = threading.Timer(0.4, lambda: late.append(Agent(path, echo)))
        timer.start()
        done = run(argv, {"CNI_COMMAND": "DEL", "PODWIRE_CNI_SOCKET": str(path)})
        timer.join()
        late[0].close()
        assert done.returncode == 3

    def test_an_agent_that_dies_meanwhile(self, argv: list[str], tmp_path: Path) -> None:
        dying = Agent(tmp_path / "cni.sock", lambda *_: b"end")
        done = run(argv, {"CNI_COMMAND": "ADD", "PODWIRE_CNI_SOCKET": str(dying.path)})
        dying.close()
        assert done.returncode == 1
        assert json.loads(done.stdout)["code"] == 11


PLUGIN = """#!/bin/sh
printf '%s %s ' "$CNI_COMMAND" "$CNI_CONTAINERID"
cat
exit $(cat "$(dirname "$0")/status")
"""


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("argv", PROGRAMS)
def test_a_demanded_plugin_runs_with_the_same_input(argv: list[str], tmp_path: Path, status: int) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "ipam").write_text(PLUGIN)
    (folder / "ipam").chmod(0o755)
    (folder / "status").write_text(str(status))
    demands = [b"\xfdADD\0ipam\0", b"\xfdDEL\0ipam\0\5the end"]
    requests: list[dict[str, str]] = []

    def answer(environment: dict[str, str], stdin: bytes) -> bytes:
        assert stdin == CONF
        requests.append(environment)
        return demands[len(requests) - 1]

    agent = Agent(tmp_path / "cni.sock", answer)
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_PATH": f"/nonexistent:{folder}",
        "PATH": os.environ["PATH"],
        "PODWIRE_CNI_SOCKET": str(agent.path),
    }
    done = run(argv, environment)
    agent.close()
    assert (done.returncode, done.stdout) == (5, b"the end")
    assert "CNI_PODWIRE_IPAM" not in requests[0]
    assert requests[1]["CNI_PODWIRE_IPAM"] == f"00{status} ADD c1 {CONF.decode()}"
    assert requests[1]["CNI_COMMAND"] == "ADD"


@pytest.mark.parametrize("argv", PROGRAMS)
def test_a_missing_plugin_is_reported(argv: list[str], tmp_path: Path) -> None:
    reports: list[str] = []

    def answer(environment: dict[str, str], _stdin: bytes) -> bytes:
        reports.append(environment.get("CNI_PODWIRE_IPAM", "none"))
        return b"\xfdDEL\0no-such-plugin\0" if len(reports) == 1 else b"\0"

    agent = Agent(tmp_path / "cni.sock", answer)
    done = run(argv, {"CNI_COMMAND": "DEL", "CNI_PATH": "/usr/bin", "PODWIRE_CNI_SOCKET": str(agent.path)})
    agent.close()
    assert (done.returncode, done.stdout, reports) == (0, b"", ["none", "127 "])


def test_an_agent_that_stays_away(tmp_path: Path) -> None:
    def call(argv: list[str], command: str) -> tuple[int, int, bool]:
        started = time.monotonic()
        done = run(
            argv, {"CNI_COMMAND": command, "PODWIRE_CNI_SOCKET": str(tmp_path / "no"), "PODWIRE_CNI_WAIT_S": "1"}
        )
        return done.returncode, json.loads(done.stdout)["code"], time.monotonic() - started >= 1

    calls = list(itertools.product((param.values[0] for param in PROGRAMS), ("ADD", "DEL")))
    with ThreadPoolExecutor(len(calls)) as pool:  # all of them wait at the same time
        assert list(pool.map(lambda item: call(*item), calls)) == [(1, 11, True)] * len(calls)


def test_status_waits_a_moment_only(tmp_path: Path) -> None:
    """For an agent that is away, one that hangs, one that hangs with a full backlog, and one that restarts."""
    hanging, full = tmp_path / "hanging.sock", tmp_path / "full.sock"
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    clients = []
    for listener, path in zip(listeners, (hanging, full), strict=True):
        listener.bind(str(path))
        listener.listen(1)
    clients.append(socket.socket(socket.AF_UNIX))
    clients[0].connect(str(full))

    def call(argv: list[str], path: Path, wait: str) -> tuple[int, int]:
        environment = {"CNI_COMMAND": "STATUS", "PODWIRE_CNI_SOCKET": str(path), "PODWIRE_CNI_WAIT_S": wait}
        done = run(argv, environment)
        return done.returncode, json.loads(done.stdout)["code"]

    calls = list(itertools.product((param.values[0] for param in PROGRAMS), (tmp_path / "no", hanging, full), ("1",)))
    calls += [(param.values[0], tmp_path / "no", "600") for param in PROGRAMS]
    try:
        with ThreadPoolExecutor(len(calls)) as pool:  # all of them wait at the same time
            assert list(pool.map(lambda item: call(*item), calls)) == [(1, 50)] * len(calls)
    finally:
        for item in (*listeners, *clients):
            item.close()


@pytest.mark.parametrize("argv", PROGRAMS)
def test_status_reaches_an_agent_that_restarts(argv: list[str], tmp_path: Path) -> None:
    path = tmp_path / "cni.sock"
    late: list[Agent] = []
    timer = threading.Timer(0.3, lambda: late.append(Agent(path, echo)))
    timer.start()
    done = run(argv, {"CNI_COMMAND": "STATUS", "PODWIRE_CNI_SOCKET": str(path)})
    timer.join()
    late[0].close()
    assert done.returncode == 3


def test_installing_replaces_a_program_in_use(tmp_path: Path) -> None:
    place = program.install(tmp_path / "bin")
    assert program.install(tmp_path / "bin") == place
    assert os.access(place, os.X_OK)
    assert [entry.name for entry in place.parent.iterdir()] == ["podwire-cni"]


def test_the_configuration_is_written_in_place(tmp_path: Path) -> None:
    place = program.write_configuration(tmp_path, b"{}")
    assert place.read_bytes() == b"{}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["10-podwire.conflist"]

"""The processes of the userspace relay: how they are started, found, replaced and ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.service_table import NODE
from tests.kernel import relay_traffic
from tests.kernel.relay_traffic import (
    Server,
    at,
    both_ways,
    client,
    kill,
    ports,
    state,
)
from tests.kernel.service_namespaces import World, path
from tests.present import present

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.userspace.client import RelayClient
from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.dataplanes.userspace.loop import Loop
from podwire.proxy.dataplanes.userspace.memory import Memory
from podwire.proxy.dataplanes.userspace.messages import Arrange, RelayPool, Renew
from podwire.proxy.dataplanes.userspace.process import ARGV
from podwire.proxy.dataplanes.userspace.relay import Relay

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[UserspaceDataPlane]:
    userspace_data_plane = UserspaceDataPlane(NODE, path("node"))
    yield userspace_data_plane
    userspace_data_plane.remove()
    userspace_data_plane.close()


used = relay_traffic.used


def test_a_new_program_loses_no_byte(plane: UserspaceDataPlane) -> None:
    def renew() -> None:
        before = state(plane).pid
        link = RelayClient(path("node"))
        link._ask(Renew(ARGV))
        link.close()
        assert state(plane).pid != before

    both_ways(renew)


def test_a_new_agent_finds_the_relay_and_loses_no_byte(plane: UserspaceDataPlane) -> None:
    def restart() -> None:
        before = state(plane)
        plane.close()
        plane.__init__(NODE, path("node"))  # type: ignore[misc]
        assert state(plane).pid == before.pid

    both_ways(restart)


def test_established_connections_outlive_the_mode(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client("node") as connection:
            time.sleep(0.1)
            other = NftablesDataPlane(NODE, path("node"))
            other.load(ports(server.endpoint))
            plane.remove()
            time.sleep(2.5)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            assert connection.recv(10) == b""
    other.remove()
    other.close()
    deadline = time.monotonic() + 30
    while (remaining := plane.relay()) is not None and not remaining.sessions:
        assert time.monotonic() < deadline, "the relay stays"
        time.sleep(0.05)


def test_when_both_are_killed_another_relay_is_started(plane: UserspaceDataPlane) -> None:
    resolved = ports(at("one", 8080))
    plane.load(resolved)
    before = state(plane)
    os.kill(before.keeper, signal.SIGSTOP)
    os.kill(before.pid, signal.SIGKILL)
    os.kill(before.keeper, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not plane.disturbed():
        assert time.monotonic() < deadline, "it is not noticed"
        time.sleep(0.01)
    assert any(plane.heal(resolved))
    with client() as connection:
        assert connection.recv(100).decode().split()[0] == "one"


def test_the_relay_accepts_commands_from_root_alone(plane: UserspaceDataPlane) -> None:
    plane.load(ports(at("one", 8080)))
    pid = os.fork()
    if pid == 0:
        netns.enter(path("node"))
        os.setuid(65534)
        try:
            RelayClient().state()
        except KernelError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_new_worker_handles_removed_pools(plane: UserspaceDataPlane) -> None:
    """Descriptor numbers in the journal may belong to other files by now."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        for _ in range(3):
            plane.load(ports(server.endpoint))
            plane.update({}, {"default/web": ()})
            time.sleep(2.2)
        plane.load(ports(server.endpoint))
        with client() as connection:
            kill(plane, "pid")()
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"


def test_a_relay_in_the_foreground_is_found_and_stays(world: World, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, netns.inside(path("two")):
        process = subprocess.Popen([sys.executable, "-m", "podwire.cli.main", "proxy", "relay"], stderr=log)
    link = RelayClient(path("two"))
    try:
        deadline = time.monotonic() + 30
        while (result := link.state()) is None:
            assert time.monotonic() < deadline, "it does not start"
            time.sleep(0.05)
        assert result.keeper == process.pid
        userspace_data_plane = UserspaceDataPlane(NODE, path("two"))
        userspace_data_plane.load(ports(at("one", 8080)))
        assert userspace_data_plane.relay() is not None
        userspace_data_plane.remove()
        userspace_data_plane.close()
        time.sleep(2.5)
        after = link.state()
        assert after is not None
        assert (after.pid, after.ports) == (result.pid, {})
        second = [sys.executable, "-m", "podwire.cli.main", "proxy", "relay"]
        with netns.inside(path("two")):
            refused = subprocess.run(second, capture_output=True, text=True, timeout=20, check=False)
        assert refused.returncode != 0
        assert "Address already in use" in refused.stderr
    finally:
        link.close()
        process.kill()
        os.kill(present(result).pid, signal.SIGKILL)
        process.wait()


def test_a_program_that_cannot_be_started_changes_nothing(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            before = state(plane)
            link = RelayClient(path("node"))
            link._ask(Renew(("/nowhere/python",)))
            link.close()
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            assert state(plane).keeper == before.keeper


def test_an_agent_of_another_version_replaces_the_relay(
    plane: UserspaceDataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay with another version of the code continues under the agent, with its connections and ports."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        before = state(plane)
        with client() as connection:
            monkeypatch.setattr("podwire.proxy.dataplanes.userspace.client.build", lambda: "another")
            with contextlib.closing(UserspaceDataPlane(NODE, path("node"))) as newer:
                assert not any(newer.load(ports(server.endpoint)))
                after = state(newer)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
        assert after.pid != before.pid
        assert after.keeper != before.keeper
        assert after.ports == before.ports


def test_connections_wait_while_none_can_be_accepted(world: World) -> None:
    """With memory for two connections, the third is served when one of them has ended."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        target = (server.endpoint.address, server.endpoint.port)
        reading, writing = os.pipe()
        relay = os.fork()
        if not relay:
            netns.enter(path("node"))
            loop = Loop()
            pool = RelayPool(key="a", protocol="tcp", address="192.168.99.1", endpoints=(target,))
            arranged = Relay(Memory.create(2), loop).arrange(Arrange((pool,)))
            os.write(writing, str(arranged.ports["a"]).encode())
            loop.run()
            os._exit(0)
        try:
            place = ("192.168.99.1", int(os.read(reading, 10)))
            first, second, third = (client("outside", place) for _ in range(3))
            with first, second, third:
                second.sendall(b"second")
                third.sendall(b"third")
                assert second.recv(10) == b"second"
                third.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    third.recv(10)
                second.close()
                third.settimeout(20)
                assert third.recv(10) == b"third"
                first.sendall(b"first")
                assert first.recv(10) == b"first"
        finally:
            os.kill(relay, signal.SIGKILL)
            os.waitpid(relay, 0)
            os.close(reading)
            os.close(writing)


def test_terminating_relay_finishes_its_connections(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            asked = state(plane)
            os.kill(asked.keeper, signal.SIGTERM)
            time.sleep(2.5)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            after = state(plane)
            assert (after.pid, after.ports) == (asked.pid, {})
        plane._client.close()
        link = RelayClient(path("node"))
        deadline = time.monotonic() + 20
        while (remaining := link.state()) is not None and not remaining.sessions:
            link.close()
            assert time.monotonic() < deadline, "it stays"
            time.sleep(0.05)
        link.close()

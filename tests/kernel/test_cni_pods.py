"""Pods through the CNI program, the socket and the kernel: real namespaces, real packets."""

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import NodeAgent, inside, ping

from podwire.cni.wiring import Wiring, WiringFacts
from podwire.kernel import netns


def test_two_pods_reach_each_other_and_leave_nothing(make: Callable[..., NodeAgent]) -> None:
    node = make()
    first, second = node.add("web-1"), node.add("database-1")
    assert (first, second) == (["10.244.1.2"], ["10.244.1.3"])
    assert node.ping("web-1", second[0]) and node.ping("database-1", first[0])
    names = node.links()
    assert sorted(name[:-6] for name in names) == ["database-", "web-1-"]
    alias = inside(node.place, "ip", "-j", "link", "show", names[0]).stdout
    assert json.loads(alias)[0]["ifalias"].startswith("shop/")
    for name in ("web-1", "database-1"):
        assert node.call("DEL", name) == (0, {})
        assert node.call("DEL", name) == (0, {})
    assert (node.links(), node.routes(), node.neighbours()) == ([], [], [])
    assert node.service.leases.held == {}


def test_pods_have_addresses_of_both_families(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd00:1::/64")
    first, second = node.add("a"), node.add("b")
    assert second == ["10.244.1.3", "fd00:1::3"]
    assert all(node.ping("a", address) for address in second)
    assert all(node.ping("b", address) for address in first)


def test_add_returns_when_packets_pass(make: Callable[..., NodeAgent], monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    plumber, looks = node.service._plumber, list[bool]()
    wire, is_ready = plumber.wire, plumber.is_ready

    def look(planned: Wiring, place: str) -> bool:
        looks.append(len(looks) > 2 and is_ready(planned, place))
        return looks[-1]

    monkeypatch.setattr(plumber, "wire", lambda *subject: wire(*subject) and False)
    monkeypatch.setattr(plumber, "is_ready", look)
    node.add("a")
    assert len(looks) > 3 and looks[-1], "it waited"


def test_the_result_has_the_form_of_each_version(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for number, version in enumerate(("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")):
        name = f"v{number}"
        node.pod(name)
        status, result = node.call("ADD", name, cniVersion=version)
        assert (status, result["cniVersion"]) == (0, version)
        if number > 1:
            assert result["interfaces"][-1]["sandbox"] == str(node.pods / name)


def test_a_second_add_is_refused_and_the_pod_keeps_working(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    other = node.add("b")
    status, error = node.call("ADD", "a")
    assert (status, error["code"]) == (1, 101)
    assert node.ping("a", other[0])


def test_an_interface_that_exists_is_refused_and_nothing_leaks(make: Callable[..., NodeAgent]) -> None:
    node = make()
    place = node.pod("a")
    inside(place, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    status, error = node.call("ADD", "a")
    assert (status, error["code"]) == (1, 102)
    assert (node.links(), node.routes(), node.service.leases.held) == ([], [], {})


def test_an_invalid_configuration_leaks_nothing(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.pod("a")
    status, error = node.call("ADD", "a", runtimeConfig={"mac": "nonsense"})
    assert (status, error["code"]) == (1, 7)
    status, error = node.call("ADD", "a", runtimeConfig={"portMappings": [{"hostPort": 0, "containerPort": 1}]})
    assert (status, error["code"]) == (1, 7)
    assert (node.links(), node.service.leases.held, node.service.leases.pools[0].held) == ([], {}, 0)
    assert node.call("ADD", "a", runtimeConfig={"mac": "02:00:00:00:00:99"})[0] == 0


def test_a_full_disk_refuses_pods_and_recovers(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "pwt-cni-disk", str(disk)], check=True)
    try:
        node = make()
        node.stop()
        node.database = disk / "ipam.db"
        node.start()
        node.add("a")
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
            while True:
                out.write(b"x" * 1024)
        problems: list[str] = []
        node.service.disk.report = problems.append
        watch = node.within(lambda: asyncio.ensure_future(node.service.disk.run()))
        codes = []
        for number in range(40):
            node.pod(f"b{number}")
            status, answer = node.call("ADD", f"b{number}")
            if status:
                codes.append(answer["code"])
                break
        assert codes == [5]
        assert node.call("STATUS")[1]["code"] == 50
        held = len(node.service.leases.held)
        assert len(node.links()) == held == node.service.leases.pools[0].held
        node.within(lambda: node.service.set_node(WiringFacts(mtu=1400, cidrs=node.cidrs)))
        assert "mtu 1400" in inside(node.pods / "a", "ip", "link", "show", "eth0").stdout, "a full disk hinders nothing"
        eventually(lambda: problems)
        assert str(disk) in problems[0] and "pods keep their network" in problems[0]
        filler.unlink()
        eventually(lambda: problems[-1] == "")
        node.within(watch.cancel)
        assert node.call("STATUS") == (0, {})
        node.add("c")
        node.facts = None
        node.stop()
        node.start()
        assert len(node.links()) == held + 1
        assert node.service._node.mtu == 1400, "the facts of the node were written when there was room"
    finally:
        node.stop()
        subprocess.run(["umount", "-l", str(disk)], check=True)
        node.database = tmp_path / "ipam.db"
        node.start()


@pytest.mark.parametrize("netns_path", ["", "/nonexistent"])
def test_del_without_the_namespace_leaves_nothing(make: Callable[..., NodeAgent], netns_path: str) -> None:
    node = make()
    node.add("a")
    netns.delete(node.pods / "a")
    assert node.call("DEL", "a", netns=netns_path) == (0, {})
    assert (node.routes(), node.neighbours(), node.service.leases.held) == ([], [], {})


def test_wrong_namespaces_are_refused(make: Callable[..., NodeAgent]) -> None:
    node = make()
    assert node.call("ADD", "a", netns="/nonexistent")[1]["code"] == 8
    assert node.call("ADD", "a", netns=str(node.place))[1]["code"] == 8


def test_check_reports_missing_objects(make: Callable[..., NodeAgent]) -> None:
    node = make()
    address = node.add("a")[0]
    assert node.call("CHECK", "a") == (0, {})
    inside(node.pods / "a", "ip", "link", "set", "eth0", "address", "02:00:00:00:00:77")
    inside(node.pods / "a", "ip", "address", "del", f"{address}/32", "dev", "eth0")
    status, error = node.call("CHECK", "a")
    assert (status, error["code"]) == (1, 100)
    assert f"{address}/32" in error["details"]
    assert node.call("CHECK", "b")[1]["code"] == 3


def test_status_reports_that_no_address_is_free(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/30")
    assert node.call("STATUS") == (0, {})
    node.add("a")
    assert node.call("STATUS")[1]["code"] == 50
    node.pod("b")
    assert node.call("ADD", "b")[1]["code"] == 11
    assert node.call("DEL", "a") == (0, {})
    assert node.call("STATUS") == (0, {})
    assert node.call("ADD", "b")[1]["ips"][0]["address"] == "10.244.1.2/32"
    assert node.service.leases.early == 1


def test_status_waits_a_moment_for_the_pod_cidr(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.within(lambda: node.service.set_node(WiringFacts()))
    assert node.call("STATUS")[1]["code"] == 50
    answers: list[tuple[int, object]] = []
    asking = threading.Thread(target=lambda: answers.append(node.call("STATUS")))
    asking.start()
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=("10.244.1.0/24",))))
    asking.join()
    assert answers == [(0, {})]


def test_gc_removes_all_but_the_valid_attachments(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "abc":
        node.add(name)
    remaining: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": "c-b", "ifname": "eth0"}]}
    assert node.call("GC", **remaining) == (0, {})
    assert [key.container for key in node.service.leases.held] == ["c-b"]
    assert len(node.links()) == 1
    assert node.call("GC", **remaining) == (0, {})


def test_host_ports_lead_to_the_pod(make: Callable[..., NodeAgent]) -> None:
    node = make()
    ports = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
    inside(node.place, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
    node.add("web", **ports)
    node.add("client")
    node.pod("second")
    assert node.call("ADD", "second", **ports)[1]["code"] == 103
    server = subprocess.Popen(
        [
            "nsenter",
            f"--net={node.pods / 'web'}",
            "python3",
            "-c",
            "import socket\ns=socket.create_server(('',80))\nprint('up',flush=True)\n"
            "while True:\n c,a=s.accept();c.sendall(a[0].encode());c.close()",
        ],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None and server.stdout.readline()
    ask = "import socket;print(socket.create_connection(('192.0.2.1',8080),20).recv(99).decode())"
    try:
        for place in (node.place, node.pods / "client", node.pods / "web"):
            done = inside(place, "python3", "-c", ask)
            assert done.returncode == 0, done.stderr
        assert node.call("DEL", "web") == (0, {})
        assert "podwire-hostport" not in inside(node.place, "nft", "list", "tables").stdout
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_restart_finds_state_ledger_and_kernel_equal(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "abcd":
        node.add(name)
    node.stop()
    inside(node.place, "ip", "link", "del", next(n for n in node.links() if n.startswith("b-")))
    node.start()
    assert sorted(key.container for key in node.service.leases.held) == ["c-a", "c-c", "c-d"]
    assert node.ping("a", "10.244.1.4")
    assert node.add("e") == ["10.244.1.6"]


def test_a_lost_ledger_is_rebuilt_from_the_kernel(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in "ab":
        node.add(name)
    node.stop()
    for part in node.database.parent.glob("ipam.db*"):
        part.unlink()
    node.start()
    assert node.ping("a", "10.244.1.3")
    assert node.add("c") == ["10.244.1.4"]
    assert node.call("DEL", "a") == (0, {})
    assert len(node.routes()) == 2


def test_pods_follow_a_new_mtu(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    node._loop.call_soon_threadsafe(node.service.set_node, WiringFacts(mtu=1400, cidrs=node.cidrs))
    node.add("b")
    for name in "ab":
        shown = json.loads(inside(node.pods / name, "ip", "-j", "link", "show", "eth0").stdout)
        assert shown[0]["mtu"] == 1400
        assert "mtu 1400" in inside(node.pods / name, "ip", "route").stdout
    assert node.ping("a", "10.244.1.3")


def test_a_spoofed_source_is_dropped(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("a")
    other = node.add("b")[0]
    inside(node.pods / "a", "ip", "addr", "add", "10.244.1.99/32", "dev", "eth0")
    assert not ping(node.pods / "a", other, "10.244.1.99")
    assert node.ping("a", other)


@pytest.mark.slow
def test_churn_leaves_nothing_and_repeats_no_address(make: Callable[..., NodeAgent]) -> None:
    node = make()
    os.environ.setdefault("LC_ALL", "C")

    def cycle(name: str) -> list[str]:
        observed = node.add(name)
        assert node.call("DEL", name) == (0, {})
        return observed

    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda w=w: results.extend(cycle(f"w{w}-{i}") for i in range(12))) for w in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 96
    assert len({address for [address] in results}) == 96
    assert (node.links(), node.routes(), node.neighbours(), node.service.leases.held) == ([], [], [], {})


def eventually_holds(node: NodeAgent, rule: str, *, held: bool = True) -> None:
    deadline = time.monotonic() + 20
    while (rule in inside(node.place, "ip", "rule").stdout) != held:
        assert time.monotonic() < deadline, rule
        time.sleep(0.02)


def test_pods_of_networks_wait_for_separation(make: Callable[..., NodeAgent]) -> None:
    node = make()
    blue = {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"podwire.io/network": "blue"}}}
    facts = WiringFacts(cidrs=node.cidrs, networks={"blue": ("10.245.1.0/24",)})
    node.within(lambda: node.service.set_node(facts))
    assert node.add("first", **blue) == ["10.245.1.2"]
    node.facts = None
    node.stop()
    node.start()
    node.pod("early")
    status, answer = node.call("ADD", "early", **blue)
    assert (status, answer["code"], answer["details"]) == (1, 7, "the pod networks are default"), "no rule is there yet"
    eventually_holds(node, "1121:\tfrom 10.245.1.2 unreachable proto 112")
    assert node.call("CHECK", "first", **blue)[0] == 0
    plain = node.add("plain")[0]
    assert not ping(node.pods / "first", plain), "a pod whose network is not separate reaches its node alone"
    inside(node.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    assert node.ping("first", "192.0.2.1")
    inside(node.place, "ip", "rule", "add", "priority", "1121", "from", "10.245.0.0/16", "lookup", "20101")
    node.stop()
    node.start()
    assert node.add("second", **blue) == ["10.245.1.3"]
    eventually_holds(node, "1121:\tfrom 10.245.1.2 unreachable proto 112", held=False)
    assert node.ping("first", "10.245.1.3")
    assert node.call("DEL", "first", **blue)[0] == 0

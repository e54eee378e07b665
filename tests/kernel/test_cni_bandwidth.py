"""podwire as the chained plugin ``bandwidth``, beside the reference plugin."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, call_plugin, inside, ping
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program
from podwire.kernel import netns

needs_plugins = pytest.mark.skipif(
    not shutil.which("bandwidth", path=PLUGINS), reason="needs containernetworking-plugins"
)
OWN, REFERENCE = str(program.path()), f"{PLUGINS}/bandwidth"
BOTH: dict[str, Any] = {
    "ingressRate": 8_000_000,
    "ingressBurst": 800_000,
    "egressRate": 4_000_000,
    "egressBurst": 400_000,
}
CONFS: dict[str, dict[str, Any]] = {
    "both": BOTH,
    "ingress": {"ingressRate": 123_456_789, "ingressBurst": 2_000_001},
    "egress": {"egressRate": 1_000_000, "egressBurst": 80_000},
    "runtime": {"runtimeConfig": {"bandwidth": BOTH}},
    "configuration before runtime": {"ingressRate": 9_000, "ingressBurst": 9_000, "runtimeConfig": {"bandwidth": BOTH}},
    "more than 32 bits": {"egressRate": 50_000_000_000, "egressBurst": 1_000_000_000},
    "nothing": {},
    "zero": {"ingressRate": 0, "runtimeConfig": {"bandwidth": BOTH}},
}
WRONG: dict[str, dict[str, Any]] = {
    "no burst": {"ingressRate": 8_000_000},
    "no rate": {"runtimeConfig": {"bandwidth": {"egressBurst": 8_000}}},
    "burst of 4 GiB": {"egressRate": 8_000, "egressBurst": 8 << 32},
    "negative": {"ingressRate": -1, "ingressBurst": 8_000},
    "text": {"ingressRate": "1M", "ingressBurst": 8_000},
}


def prepare(node: NodeAgent, pod: str, device: str = "veth7") -> dict[str, Any]:
    """A pod with a veth pair; returns the result of the plugin that made it."""
    place = node.pod(pod)
    for where, line in (
        (node.place, f"link add {device} mtu 1400 type veth peer name eth0 netns {place}"),
        (node.place, f"address add 10.9.0.1/24 dev {device}"),
        (node.place, f"link set {device} up"),
        (place, "address add 10.9.0.2/24 dev eth0"),
        (place, "link set eth0 up"),
    ):
        done = inside(where, "ip", *line.split())
        assert done.returncode == 0, done.stderr
    devices = [{"name": device}, {"name": "eth0", "sandbox": str(place)}]
    return {"cniVersion": "1.0.0", "interfaces": devices, "ips": [{"address": "10.9.0.2/24", "interface": 1}]}


def run(node: NodeAgent, line: str) -> None:
    done = inside(node.place, *line.split())
    assert done.returncode == 0, done.stderr


def call(node: NodeAgent, plugin: str, command: str, pod: str = "a", **conf: Any) -> tuple[int, dict[str, Any]]:
    document = {"cniVersion": "1.0.0", "name": "limited", "type": "bandwidth", **conf}
    return call_plugin(node, plugin, command, pod, document)


def tc(node: NodeAgent, kind: str, device: str, *more: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(inside(node.place, "tc", "-j", kind, "show", "dev", device, *more).stdout)
    return shown


def ifbs(node: NodeAgent) -> list[str]:
    shown = json.loads(inside(node.place, "ip", "-j", "-d", "link").stdout)
    return [link["ifname"] for link in shown if link.get("linkinfo", {}).get("info_kind") == "ifb"]


def state(node: NodeAgent) -> list[Any]:
    """Disciplines, filters and ifb devices as the kernel has them."""
    links = json.loads(inside(node.place, "ip", "-j", "-d", "link").stdout)
    devices = [link for link in links if link.get("linkinfo", {}).get("info_kind") == "ifb"]
    shown: list[Any] = [(link["ifname"], link["mtu"], link.get("txqlen"), "UP" in link["flags"]) for link in devices]
    shown += [tc(node, "qdisc", name) for name in ("veth7", *(link["ifname"] for link in devices))]
    for entry in tc(node, "filter", "veth7", "ingress"):
        actions = entry.get("options", {}).get("actions", [])
        target = [(a["kind"], a["mirred_action"], a["direction"], a["to_dev"]) for a in actions[:1]]
        shown.append((entry["protocol"], entry["pref"], entry["kind"], entry.get("options", {}).get("flowid"), target))
    return shown


def without_mac(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the random address of the ifb device."""
    for interface in result.get("interfaces", []):
        if interface["name"].startswith("bwp"):
            assert len(interface.pop("mac").split(":")) == 6
    return result


def delivered(source: Path, target: Path, address: str) -> int:
    """How many of 300 datagrams of 1000 bytes, sent at once, arrive."""
    with netns.inside(target):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        receiver.bind((address, 7))
        for _ in range(300):
            sender.sendto(bytes(1000), (address, 7))
        receiver.settimeout(0.5)
        count = 0
        try:
            while receiver.recv(2000):
                count += 1
        except TimeoutError:
            return count
    return count


@needs_plugins
@pytest.mark.parametrize("conf", CONFS.values(), ids=CONFS)
def test_pods_are_limited_as_by_the_reference_plugin(make: Callable[..., NodeAgent], conf: dict[str, Any]) -> None:
    node = make("10.244.1.0/24")
    outcomes = []
    for plugin in (OWN, REFERENCE):
        before = prepare(node, "a")
        status, result = call(node, plugin, "ADD", **conf, prevResult=before)
        steps: list[Any] = [status, state(node)]
        if conf:  # The reference plugin crashes in CHECK without rates.
            steps.append(call(node, plugin, "CHECK", **conf, prevResult=result)[0])
        steps.append(without_mac(result))
        run(node, "ip link del veth7")
        netns.delete(node.pods / "a")
        steps.append(call(node, plugin, "DEL", **conf, prevResult=result))
        steps.append(call(node, plugin, "DEL", **conf, prevResult=result))
        steps.append(ifbs(node))
        outcomes.append(steps)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][-1] == []


@needs_plugins
@pytest.mark.parametrize("conf", WRONG.values(), ids=WRONG)
def test_wrong_rates_are_refused(make: Callable[..., NodeAgent], conf: dict[str, Any]) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    untouched = state(node)
    for plugin in (OWN, REFERENCE):
        assert call(node, plugin, "ADD", **conf, prevResult=before)[0] == 1, plugin
    assert state(node) == untouched


def test_del_restores_the_device_and_foreign_state_stays(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    run(node, "ip link add foreign type ifb")
    run(node, "tc qdisc add dev foreign root tbf rate 1mbit burst 10k latency 25ms")
    untouched = state(node), tc(node, "qdisc", "foreign")
    assert call(node, OWN, "ADD", **BOTH, prevResult=before)[0] == 0
    limited = state(node)
    assert limited != untouched[0]
    assert call(node, OWN, "ADD", **BOTH, prevResult=before)[0] == 0, "again"
    assert state(node) == limited
    node.stop()
    node.start()
    assert call(node, OWN, "DEL", **BOTH) == (0, {})
    assert (state(node), tc(node, "qdisc", "foreign")) == untouched


def test_disciplines_of_others_are_refused_and_stay(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    run(node, "tc qdisc add dev veth7 root tbf rate 1mbit burst 10k latency 25ms")
    untouched = state(node)
    status, answer = call(node, OWN, "ADD", **BOTH, prevResult=before)
    assert (status, answer["code"]) == (1, 999)
    assert "veth7" in answer["details"]
    assert "tbf" in answer["details"]
    assert call(node, OWN, "DEL", **BOTH) == (0, {})
    assert state(node) == untouched
    run(node, "tc qdisc del dev veth7 root")
    run(node, "tc qdisc add dev veth7 clsact")
    with_clsact = state(node)
    assert call(node, OWN, "ADD", **BOTH, prevResult=before)[0] == 0
    assert call(node, OWN, "DEL", **BOTH) == (0, {})
    assert state(node) == with_clsact


@pytest.mark.parametrize(
    "change",
    [
        "tc qdisc del dev veth7 root",
        "tc qdisc del dev veth7 ingress",
        "tc qdisc replace dev veth7 root handle 1: tbf rate 1mbit burst 10k latency 25ms",
        "ip link del {ifb}",
        "tc qdisc del dev {ifb} root",
    ],
)
def test_check_finds_limits_that_are_gone(make: Callable[..., NodeAgent], change: str) -> None:
    node = make("10.244.1.0/24")
    _, result = call(node, OWN, "ADD", **BOTH, prevResult=prepare(node, "a"))
    assert call(node, OWN, "CHECK", **BOTH, prevResult=result) == (0, {})
    run(node, change.format(ifb=ifbs(node)[0]))
    status, answer = call(node, OWN, "CHECK", **BOTH, prevResult=result)
    assert (status, answer["code"]) == (1, 100)


def test_gc_removes_limits_of_pods_that_are_not_listed(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    for pod, device in (("a", "veth7"), ("b", "veth8")):
        assert call(node, OWN, "ADD", pod, **BOTH, prevResult=prepare(node, pod, device))[0] == 0
    assert len(ifbs(node)) == 2
    listed: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "c-a", "ifname": "eth0"}],
    }
    assert call(node, OWN, "GC", **listed | {"name": "other"}) == (0, {})
    assert len(ifbs(node)) == 2
    assert call(node, OWN, "GC", **listed) == (0, {})
    assert len(ifbs(node)) == 1
    assert [entry["kind"] for entry in tc(node, "qdisc", "veth8")] == ["noqueue"]
    assert [entry["kind"] for entry in tc(node, "qdisc", "veth7")] == ["tbf", "ingress"]


@needs_plugins
def test_pods_of_the_reference_plugin_are_deleted(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    assert call(node, REFERENCE, "ADD", **BOTH, prevResult=prepare(node, "a"))[0] == 0
    assert len(ifbs(node)) == 1
    assert call(node, OWN, "DEL", **BOTH) == (0, {})
    assert ifbs(node) == []


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_traffic_beyond_the_rate_is_dropped(make: Callable[..., NodeAgent], direction: str) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    ends = [(node.place, "10.9.0.1"), (node.pods / "a", "10.9.0.2")]
    assert any(ping(node.place, "10.9.0.2") for _ in range(100)), "the devices forward"
    (source, _), (target, address) = ends if direction == "ingress" else reversed(ends)
    assert delivered(source, target, address) == 300
    conf: dict[str, Any] = {f"{direction}Rate": 80_000, f"{direction}Burst": 80_000}
    assert call(node, OWN, "ADD", **conf, prevResult=before)[0] == 0
    assert 5 <= delivered(source, target, address) < 150
    other_source, (other_target, other_address) = target, (ends[0] if direction == "ingress" else ends[1])
    assert delivered(other_source, other_target, other_address) == 300, "the other direction has no limit"
    assert call(node, OWN, "DEL", **conf) == (0, {})
    assert delivered(source, target, address) == 300

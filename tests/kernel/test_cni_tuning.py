"""podwire as the chained plugin ``tuning``, beside the reference plugin."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, call_plugin, inside
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program
from podwire.kernel import netns

needs_plugins = pytest.mark.skipif(not shutil.which("tuning", path=PLUGINS), reason="needs containernetworking-plugins")
OWN = str(program.path())
CONFS: dict[str, dict[str, Any]] = {
    "sysctl": {"sysctl": {"net.core.somaxconn": "500", "net/ipv4/conf/eth0/arp_filter": "1"}},
    "mac": {"mac": "02:00:00:00:00:99"},
    "mac of the runtime": {"mac": "02:00:00:00:00:98", "runtimeConfig": {"mac": "02:00:00:00:00:99"}},
    "mac of args": {"args": {"cni": {"mac": "02:00:00:00:00:99"}}},
    "mtu": {"mtu": 1300},
    "modes": {"promisc": True, "allmulti": True},
    "nothing": {},
}


def prepare(node: NodeAgent, pod: str) -> dict[str, Any]:
    """A namespace with a device ``eth0``; returns the result of the plugin that made it."""
    node.pods.mkdir(exist_ok=True)
    place = node.pods / pod
    netns.create(place)
    inside(place, "ip", "link", "set", "lo", "up")
    made = inside(place, "ip", "link", "add", "eth0", "address", "02:00:00:00:00:01", "type", "bridge")
    assert made.returncode == 0, made.stderr
    inside(place, "ip", "link", "set", "eth0", "up")
    device = {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": str(place)}
    ips = [{"address": "10.9.0.2/24", "interface": 1}]
    return {"cniVersion": "1.0.0", "interfaces": [{"name": "veth7"}, device], "ips": ips}


def call(node: NodeAgent, plugin: str, command: str, pod: str, conf: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    document = {
        "cniVersion": "1.0.0",
        "name": "tuned",
        "type": "tuning",
        "dataDir": str(node.place.parent / "tuning-data"),
        **conf,
    }
    return call_plugin(node, plugin, command, pod, document)


def seen(node: NodeAgent, pod: str) -> tuple[str, ...]:
    """Settings of the device and of the sysctls as the kernel has them."""
    place = node.pods / pod
    (link,) = json.loads(inside(place, "ip", "-j", "-d", "link", "show", "eth0").stdout)
    values = inside(place, "sysctl", "-n", "net.core.somaxconn", "net.ipv4.conf.eth0.arp_filter").stdout.split()
    return (link["address"], str(link["mtu"]), str(link["promiscuity"]), str("ALLMULTI" in link["flags"]), *values)


@needs_plugins
@pytest.mark.parametrize("conf", CONFS.values(), ids=CONFS)
def test_pods_are_tuned_as_by_the_reference_plugin(make: Callable[..., NodeAgent], conf: dict[str, Any]) -> None:
    node = make("10.244.1.0/24")
    outcomes = []
    for plugin in (OWN, f"{PLUGINS}/tuning"):
        steps: list[Any] = []
        before = prepare(node, "a")
        status, result = call(node, plugin, "ADD", "a", {**conf, "prevResult": before})
        steps += [(status, result), seen(node, "a")]
        checked = {**conf, "prevResult": result}
        steps.append(call(node, plugin, "CHECK", "a", checked)[0])
        steps.append(call(node, plugin, "DEL", "a", checked))
        steps.append(seen(node, "a"))
        steps.append(call(node, plugin, "DEL", "a", checked))
        netns.delete(node.pods / "a")
        steps.append(call(node, plugin, "DEL", "a", checked))
        outcomes.append(steps)
    assert outcomes[0] == outcomes[1]


@needs_plugins
@pytest.mark.parametrize(
    ("conf", "change"),
    [
        ({"sysctl": {"net.core.somaxconn": "500"}}, "sysctl -w net.core.somaxconn=7"),
        ({"mac": "02:00:00:00:00:99"}, "ip link set eth0 address 02:00:00:00:00:77"),
        ({"mtu": 1300}, "ip link set eth0 mtu 1200"),
        ({"promisc": True}, "ip link set eth0 promisc off"),
        ({"allmulti": True}, "ip link set eth0 allmulticast off"),
    ],
)
def test_check_finds_what_the_reference_plugin_finds(
    make: Callable[..., NodeAgent], conf: dict[str, Any], change: str
) -> None:
    node = make("10.244.1.0/24")
    for plugin in (OWN, f"{PLUGINS}/tuning"):
        before = prepare(node, "a")
        _, result = call(node, plugin, "ADD", "a", {**conf, "prevResult": before})
        inside(node.pods / "a", *change.split())
        assert call(node, plugin, "CHECK", "a", {**conf, "prevResult": result})[0] == 1, plugin
        netns.delete(node.pods / "a")


@needs_plugins
@pytest.mark.parametrize("wrong", [{"sysctl": {"kernel.hostname": "x"}}, {"sysctl": {"net/../kernel/hostname": "x"}}])
def test_sysctls_outside_of_the_network_are_refused(make: Callable[..., NodeAgent], wrong: dict[str, Any]) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    for plugin in (OWN, f"{PLUGINS}/tuning"):
        assert call(node, plugin, "ADD", "a", {**wrong, "prevResult": before})[0] == 1
        assert call(node, plugin, "ADD", "a", {"mtu": 1300})[0] == 1, "without prevResult"
    assert inside(node.pods / "a", "hostname").stdout.strip() != "x"


def test_queue_length_is_refused(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    status, answer = call(node, OWN, "ADD", "a", {"txQLen": 100, "prevResult": prepare(node, "a")})
    assert (status, answer["code"]) == (1, 2)
    assert "txQLen: 100" in answer["msg"]


def test_killed_agent_restores_the_device_at_del(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24")
    before = prepare(node, "a")
    original = seen(node, "a")
    conf = {"mac": "02:00:00:00:00:99", "mtu": 1300, "promisc": True, "prevResult": before}
    assert call(node, OWN, "ADD", "a", conf)[0] == 0
    assert seen(node, "a") != original
    node.stop()
    node.start()
    assert call(node, OWN, "DEL", "a", conf) == (0, {})
    assert seen(node, "a") == original

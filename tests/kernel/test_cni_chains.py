"""podwire-cni in a list with the reference plugins: traffic, CHECK, and what CHECK finds."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import NodeAgent, inside, ping
from tests.kernel.plugin_chain import OWN, PluginChain
from tests.kernel.reference_plugins import PLUGINS

needs_plugins = pytest.mark.skipif(not shutil.which("tuning", path=PLUGINS), reason="needs containernetworking-plugins")
BOTH = ("10.244.1.0/24", "fd00:1::/64")
PORT = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


def addresses(result: dict[str, Any]) -> list[str]:
    return [ip["address"].partition("/")[0] for ip in result["ips"]]


@needs_plugins
@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
@pytest.mark.parametrize("more", [{"mac": "02:00:00:00:00:99"}, {"mtu": 1300}], ids=["mac", "mtu"])
@pytest.mark.parametrize("own", [set(), {"tuning"}], ids=["reference", "own"])
def test_tuning_may_change_the_interface(
    make: Callable[..., NodeAgent], version: str, more: dict[str, Any], own: set[str]
) -> None:
    node = make(*BOTH)
    chain = PluginChain(node, {"type": OWN}, {"type": "tuning", **more}, version=version)
    chain.own |= own
    other = node.add("client")
    result = chain.add("web")
    eventually(lambda: all(ping(node.pods / "client", address) for address in addresses(result)))
    assert all(node.ping("web", address) for address in other)
    if version != "0.3.1":
        chain.check("web")
    chain.delete("web")
    assert len(node.links()) == 1


def test_hardware_address_that_changed_while_no_agent_ran_is_followed(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    web = node.add("web")
    node.add("client")
    node.stop()
    inside(node.pods / "web", "ip", "link", "set", "eth0", "address", "02:00:00:00:00:99")
    node.start()
    eventually(lambda: all(ping(node.pods / "client", address) for address in web))
    assert {attachment.mac for key, attachment in node.service.leases.held.items() if key.container == "c-web"} == {
        "02:00:00:00:00:99"
    }
    assert node.call("CHECK", "web") == (0, {})


@needs_plugins
@pytest.mark.parametrize("own_types", [set(), {"firewall"}], ids=["reference", "own"])
@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
def test_portmap_and_firewall_follow(make: Callable[..., NodeAgent], version: str, own_types: set[str]) -> None:
    node = make(*BOTH)
    own = {"type": OWN}
    portmap = {"type": "portmap", "snat": True, "runtimeConfig": {"portMappings": [PORT]}}
    firewall = {"type": "firewall", "backend": "iptables"}
    chain = PluginChain(node, own, version=version)
    chain.own |= own_types
    result = chain.add("web")
    for conf in (portmap, firewall):
        assert chain.run("ADD", "web", conf | {"prevResult": result}) == (0, result)
    for conf in (own, firewall):  # CHECK of portmap 1.1 fails behind ptp, too: it looks for IPv4 rules in IPv6.
        assert chain.run("CHECK", "web", conf | {"prevResult": result}) == (0, {})
    node.add("client")
    assert all(node.ping("client", address) for address in addresses(result))
    for conf in (firewall, portmap, own):
        assert chain.run("DEL", "web", conf | {"prevResult": result}) == (0, {})


@pytest.mark.parametrize("own", [set(), {"bandwidth"}], ids=["reference", "own"])
def test_bandwidth_follows(make: Callable[..., NodeAgent], own: set[str]) -> None:
    if not own and not shutil.which("bandwidth", path=PLUGINS):
        pytest.skip("needs containernetworking-plugins")
    node = make(*BOTH)
    rates = {"ingressRate": 10**8, "ingressBurst": 10**7, "egressRate": 10**8, "egressBurst": 10**7}
    bandwidth = {"type": "bandwidth"}
    chain = PluginChain(node, {"type": OWN})
    chain.own |= own
    first = chain.add("web")
    limit = bandwidth | {"runtimeConfig": {"bandwidth": rates}}
    status, result = chain.run("ADD", "web", limit | {"prevResult": first})
    assert (status, len(result["interfaces"])) == (0, len(first["interfaces"]) + 1)
    node.add("client")
    assert all(node.ping("client", address) for address in addresses(result))
    for conf in ({"type": OWN}, limit):
        assert chain.run("CHECK", "web", conf | {"prevResult": result}) == (0, {})
    node.stop()
    node.start()
    assert all(node.ping("client", address) for address in addresses(result))
    for conf in (limit, {"type": OWN}):
        assert chain.run("DEL", "web", conf | {"prevResult": result}) == (0, {})
    assert len(node.links()) == 1


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("web", "ip neigh replace GATEWAY lladdr 02:00:00:00:00:aa dev eth0 nud permanent"),
        ("web", "ip neigh del GATEWAY dev eth0"),
        ("web", "ip route del default"),
        ("web", "ip link set eth0 down"),
        ("", "nft delete table inet podwire-hostport"),
        ("", "nft flush map inet podwire-hostport any4"),
    ],
    ids=["wrong neighbour", "no neighbour", "no route", "down", "no table", "no element"],
)
def test_check_finds_a_change(make: Callable[..., NodeAgent], place: str, command: str) -> None:
    node = make()
    node.add("web", runtimeConfig={"portMappings": [PORT]})
    assert node.call("CHECK", "web") == (0, {})
    for _ in range(5):  # The agent restores what is on the node within about a second.
        inside(node.pods / place if place else node.place, *command.replace("GATEWAY", node.gateway).split())
        status, error = node.call("CHECK", "web")
        if status:
            break
    assert (status, error["code"]) == (1, 100)
    assert error["details"]


def test_check_needs_the_result_of_add(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("web")
    status, error = node.call("CHECK", "web", prevResult=None)
    assert (status, error["code"]) == (1, 7)
    assert node.call("CHECK", "web", prevResult=None, disableCheck=True) == (0, {})
    other = json.loads(json.dumps(node.results["web", "eth0"]).replace("10.244.1.2", "10.244.1.3"))
    assert node.call("CHECK", "web", prevResult=other)[1]["code"] == 100

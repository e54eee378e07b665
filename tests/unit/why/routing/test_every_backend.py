"""For every backend, ``why`` and ``probe`` name route, device, tunnel, peer and MTU of a packet between two nodes."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.why.routing.test_explainer import Configured
from tests.unit.why.test_question import node, pod

from podwire.cluster.world import World
from podwire.local.probe.plan import Attempt, PacketSource, ProbeInputs, ProbePort
from podwire.local.probe.result import ProbeResult
from podwire.local.probe.routes import pairs, read_routes
from podwire.model.node import Node
from podwire.routing.nodes import RoutingFacts
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings
from podwire.why.answer import NodeRoute
from podwire.why.routing.explainer import explain_route

KEYS = {"node-1": "A" * 43 + "=", "node-2": "B" * 43 + "="}
LEGS = {"legs": True}
MAC = {"mac": "02:00:00:00:00:02"}
SWITCH = {"tunnel": "geneve", "port": 6082, "vni": 4096}


class Path(NamedTuple):
    """The path to a pod of the peer; ``tunnel`` is protocol, identifier and port of the outer header."""

    route: str
    mtu: int = 1500
    tunnel: tuple[str, int, int] | None = None


def by(device: str, encapsulation: str = "") -> str:
    return f"10.244.2.0/24 {encapsulation}via 10.244.2.1 dev {device} onlink src 10.244.1.1"


PLAIN = "10.244.2.0/24 via 192.168.0.2 dev eth0 src 192.168.0.1"
LEG = "10.244.2.0/24 dev lan0"
PATHS = {
    "bgp": Path(PLAIN),
    "bridge": Path(by("podwire-bridge")),
    "cloudroutes": Path("default dev eth0"),
    "geneve": Path(by("podwire-geneve", "encap ip id 4096 dst 192.168.0.2 ttl 64 "), 1450, ("Geneve", 4096, 6081)),
    "hostgw": Path(PLAIN),
    "ipip": Path("10.244.2.0/24 via 192.168.0.2 dev podwire-ipip onlink src 10.244.1.1", 1480, ("IP in IP", 0, 0)),
    "ipvlan": Path(LEG),
    "macvlan": Path(LEG),
    "none": Path("default dev eth0"),
    "ovs": Path(by("podwire-ovs"), 1450, ("Geneve", 4096, 6082)),
    "udp": Path("10.244.2.0/24 dev podwire-udp src 10.244.1.1", 1464, ("UDP", 0, 8285)),
    "vlan": Path(by("podwire-vlan")),
    "vxlan": Path(by("podwire-vxlan"), 1450, ("VXLAN", 4096, 8472)),
    "wireguard": Path("10.244.2.0/24 dev podwire-wg src 10.244.1.1", 1440, ("WireGuard", 0, 51820)),
}


def details(name: str) -> Mapping[str, Any]:
    """What a node announces."""
    keys = {"generation": 0, "keys": {"0": KEYS[name]}}
    legs, bridges = dict.fromkeys(("macvlan", "ipvlan"), LEGS), dict.fromkeys(("bridge", "vlan"), MAC)
    further = {"wireguard": keys, "ovs": SWITCH, "udp": {"port": 8285}, "bgp": {"asNumber": 64512}}
    return {**legs, **bridges, **further}


def announced(name: str, address: str, backend: str) -> Node:
    facts = RoutingFacts(backend, tuple(BACKENDS), details(name)).annotations()
    made = node(name, address)
    return replace(made, metadata=replace(made.metadata, annotations=facts))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_why_and_probe_name_the_path_of_a_packet(backend: str) -> None:
    expected = PATHS[backend]
    nodes = (announced("node-1", "192.168.0.1", backend), announced("node-2", "192.168.0.2", backend))
    kernels = Configured(RoutingSettings(backend=backend))
    told, _ = explain_route(kernels, *nodes, ip_address("10.244.2.5"), source=ip_address("10.244.1.5"))
    assert (told.backend, told.node, told.peer, told.address) == (backend, "node-1", "node-2", "10.244.2.5")
    assert (told.route, told.device, told.mtu) == (expected.route, device_of(expected.route), expected.mtu)
    assert (tunnel_of(told), told.missing) == (expected.tunnel, ())

    pods = (pod("shop/web", "node-1", "10.244.1.5"), pod("shop/db", "node-2", "10.244.2.5"))
    inputs = ProbeInputs(pods=pods, services=(), world=World(pods=pods, nodes=nodes))
    attempt = Attempt(PacketSource(name="shop/web", node="node-1"), "shop/db", "10.244.2.5", ProbePort(80))
    crossed = pairs([ProbeResult(attempt, reached=True, answered_by="shop/db")], inputs)
    (probed,) = read_routes(crossed, inputs, kernels).by_pair.values()
    assert msgspec.to_builtins(probed) == msgspec.to_builtins(told)
    text = read_routes(crossed, inputs, kernels).text()
    assert f"node-1 to node-2 by {backend}" in text and f"{expected.route}, MTU {expected.mtu}" in text
    assert expected.tunnel is None or f"{expected.tunnel[0]}" in text


def test_every_backend_has_a_path_here() -> None:
    assert sorted(PATHS) == sorted(BACKENDS)


def device_of(route: str) -> str:
    words = route.split()
    return words[words.index("dev") + 1]


def tunnel_of(route: NodeRoute) -> tuple[str, int, int] | None:
    tunnel = route.tunnel
    if tunnel is None:
        return None
    assert (tunnel.source, tunnel.destination, tunnel.device) == ("192.168.0.1", "192.168.0.2", "eth0")
    assert tunnel.encrypted == (route.backend == "wireguard")
    return tunnel.protocol, tunnel.id, tunnel.port

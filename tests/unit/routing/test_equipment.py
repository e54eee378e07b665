"""What a node has for its backends: keys for those in use, and features that they ask for."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.equipment import with_equipment
from podwire.routing.nodes import LocalNode, NodeKey, Underlay
from podwire.routing.settings import RoutingSettings

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
BACKENDS = RoutingSettings().load()


class OneKey:
    """Keeps one key pair for each name."""

    def keep(self, backend: str, names: Iterable[str]) -> Mapping[str, NodeKey]:
        return {name: NodeKey(f"{backend} {name}", "/key") for name in names}


def test_features_are_asked_for_while_their_backend_is_in_use() -> None:
    asked: list[str] = []

    def lacks(feature: str) -> str:
        asked.append(feature)
        return ""

    assert with_equipment(ME, [], {"hostgw": BACKENDS["hostgw"]}, OneKey(), lacks) == ME
    assert asked == [], "a probe may load a module"
    assert with_equipment(ME, [], {"ovs": BACKENDS["ovs"]}, OneKey(), lacks).features == {"openvswitch"}
    assert with_equipment(ME, [], {"ovs": BACKENDS["ovs"]}, OneKey(), lambda feature: f"no {feature}") == ME


def test_backends_that_hold_keys_get_those_that_they_name() -> None:
    used = {name: BACKENDS[name] for name in ("wireguard", "vxlan")}
    with_keys = with_equipment(ME, [], used, OneKey(), str)
    assert with_keys.keys == {"wireguard": {"0": NodeKey("wireguard 0", "/key")}}
    assert with_equipment(ME, [], used, None, str) == ME

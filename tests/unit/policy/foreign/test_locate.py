"""Pods found by the node's routes, and on a bridge by what is behind its ports."""

import pytest

from podwire.policy.foreign.locate import LinkTable, PodLink, locate
from podwire.state.network import parse

STATE = parse(
    """\
link cni0 up type bridge
link eth0 up
link vetha master cni0 up type veth
link vethp up type veth
link pair up type veth peer other
link other up type veth peer pair
link flannel.1 up type vxlan id 1
address 10.244.1.1/24 dev cni0
address fd01::1/64 dev cni0
address 192.0.2.1/24 dev eth0
route 10.244.1.77/32 dev vethp
route 10.244.1.78/32 dev pair
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
route default via 192.0.2.254 dev eth0
route fd02::7/128 dev vethp
"""
)
BEHIND = {"cni0": {"vetha": frozenset(("10.244.1.5", "fd01::5")), "vethb": frozenset(("10.244.1.6",))}}


@pytest.mark.parametrize(
    ("address", "device"),
    [
        ("10.244.1.77", "vethp"),
        ("10.244.1.5", "cni0"),
        ("fd01::9", "cni0"),
        ("fd02::7", "vethp"),
        ("192.0.2.9", "eth0"),
        ("10.244.2.5", ""),
        ("198.51.100.1", ""),
        ("fd03::1", ""),
    ],
)
def test_the_longest_prefix_leads(address: str, device: str) -> None:
    assert LinkTable(STATE).device(address) == device


def test_a_device_of_its_own_and_a_port() -> None:
    pods = {"a": ("10.244.1.5", "fd01::5"), "p": ("10.244.1.77", "fd02::7")}
    assert locate(pods, STATE, BEHIND, {}) == {"a": PodLink("cni0", "vetha"), "p": PodLink("vethp")}


@pytest.mark.parametrize("address", ["10.244.1.99", "10.244.1.78", "192.0.2.9", "10.244.2.5"])
def test_routes_with_gateways_lead_to_no_pod(address: str) -> None:
    """A port nobody has it behind, a pair of the node's own, a card, another node."""
    assert locate({"a": (address,)}, STATE, BEHIND, {}) == {}


def test_a_pod_cannot_take_the_port_of_another() -> None:
    """Whoever may add addresses in a pod's namespace adds that of another pod."""
    pods = {"victim": ("10.244.1.5",), "thief": ("10.244.1.6",)}
    ports = {"cni0": {"vetha": frozenset(("10.244.1.5",)), "vethb": frozenset(("10.244.1.6", "10.244.1.5"))}}
    right = {"victim": PodLink("cni0", "vetha"), "thief": PodLink("cni0", "vethb")}
    assert locate(pods, STATE, ports, right) == right
    assert locate(pods, STATE, ports, {}) == right
    gone = {"cni0": {"vethb": ports["cni0"]["vethb"]}}
    assert locate({"victim": pods["victim"]}, STATE, gone, right) == {"victim": PodLink("cni0", "vethb")}

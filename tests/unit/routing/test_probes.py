"""The targets of the self-test, the checksum offload that follows, and the text of mismatches."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.routing.nodes import LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.plan import Plan, plan
from podwire.routing.probes import EVERY_TUNNEL, PathResult, ProbeTarget, mismatches
from podwire.routing.settings import RoutingSettings
from podwire.state.offload import Offload

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd00:0:0:1::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64"))),
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.2.0/24"), ip_network("fd00:0:0:2::/64")),
    facts=RoutingFacts("vxlan", ("hostgw", "vxlan"), {"mtu": 1500}),
)


def planned(me: LocalNode = ME, peer: Peer = PEER, **settings: object) -> Plan:
    chosen = RoutingSettings(**settings)  # type: ignore[arg-type]
    return plan(me, (peer,), chosen, chosen.load())


def test_targets_take_the_path_of_pods() -> None:
    tunnel = planned().targets
    assert [(t.version, t.source, t.address, t.mtu, t.device) for t in tunnel] == [
        (4, "10.244.1.1", "10.244.2.1", 1450, "podwire-vxlan"),
        (6, "fd00:0:0:1::1", "fd00:0:0:2::1", 1450, "podwire-vxlan"),
    ]
    plain = planned(backend="hostgw").targets
    assert [(t.source, t.address, t.mtu, t.device) for t in plain] == [
        ("10.89.0.11", "10.89.0.12", 1500, ""),
        ("fd89::11", "fd89::12", 1500, ""),
    ]
    direct = planned(direct_routing=True, mtu=1400).targets
    assert [(t.address, t.mtu) for t in direct] == [("10.89.0.12", 1400), ("fd89::12", 1400)]


def test_other_programs_and_missing_families_are_not_tested() -> None:
    assert planned(peer=replace(PEER, facts=RoutingFacts("vxlan", ("vxlan",)))).targets == ()
    item = replace(PEER, pod_cidrs=PEER.pod_cidrs[:1])
    assert [target.version for target in planned(peer=item).targets] == [4]


@pytest.mark.parametrize(
    ("mode", "plain", "expected"),
    [
        ("auto", (), ()),
        ("auto", ("podwire-vxlan",), (Offload("podwire-vxlan", "off"),)),
        ("auto", (EVERY_TUNNEL,), (Offload("podwire-vxlan", "off"),)),
        ("on", ("podwire-vxlan",), (Offload("podwire-vxlan", "on"),)),
        ("off", (), (Offload("podwire-vxlan", "off"),)),
    ],
)
def test_offload_is_left_alone_until_it_fails(mode: str, plain: tuple[str, ...], expected: tuple[Offload, ...]) -> None:
    got = planned(replace(ME, plain_checksums=plain), tx_checksum=mode)
    assert tuple(value for value in got.values if isinstance(value, Offload)) == expected
    alone = replace(PEER, facts=RoutingFacts("hostgw", ("hostgw",)))
    plain_routes = planned(ME, alone, backend="hostgw", tx_checksum="off")
    assert not [value for value in plain_routes.values if isinstance(value, Offload)]


def test_the_first_mismatches_are_named_and_the_rest_counted() -> None:
    target = ProbeTarget(peer="node-1", version=4, source="10.0.0.1", address="10.0.0.2", mtu=1450)
    results = [PathResult(target=replace(target, peer=f"node-{n}"), largest=1400) for n in range(9, 3, -1)]
    text = mismatches([*results, PathResult(target=target), PathResult(target=target, largest=1450)])
    assert text.startswith("node-4 (IPv4, 10.0.0.2): packets of 1400 bytes pass, 1450 are expected; node-5 ")
    assert text.endswith("; and 3 more")

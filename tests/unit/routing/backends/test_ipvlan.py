"""What is special about the backend ipvlan: what takes the second interfaces of pods, and which leg a pod has."""

import pytest
from msgspec.structs import replace
from tests.unit.routing.backends.test_bridge import ME, peer

from podwire.errors import ConfigError
from podwire.routing.backends.ipvlan.backend import IpvlanLegs, IpvlanOptions, IpvlanSection
from podwire.routing.nodes import ClusterView, Device, LocalNode, Peer, RoutingFacts
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.state.nft import Table

LEGS = {"ipvlan": {"legs": True}}


def legged(number: int, backend: str = "ipvlan") -> Peer:
    return replace(peer(number), facts=RoutingFacts(backend, ("hostgw", backend), {backend: {"legs": True}}))


def backend(uplink: str = "") -> IpvlanLegs:
    return IpvlanLegs(IpvlanOptions(ipvlan=IpvlanSection(uplink=uplink)))


def announcing(*names: str) -> LocalNode:
    return replace(ME, facts=RoutingFacts(names[0], (), {name: {"legs": True} for name in names}))


def test_answers_to_all_peers_take_the_leg() -> None:
    peers = (legged(2), peer(5))
    made = backend().plan(ME, peers, ClusterView(peers))
    assert made.leg is not None and (made.leg.kind, made.leg.mode, made.leg.uplink) == ("ipvlan", "l2", "eth0")
    assert made.leg.networks == (
        "10.244.2.0/24", "fd44:0:0:2::/64", "10.89.0.12/32", "fd89::12/128", "10.89.0.15/32", "fd89::15/128",
    )  # fmt: skip
    assert made.leg.gateways == (("10.244.5.0/24", "10.89.0.15"), ("fd44:0:0:5::/64", "fd89::15"))
    [table] = made.values
    assert isinstance(table, Table) and table.name == "podwire-ipvlan" and "10.244.5.0/24" in str(table)


def test_a_second_card_leads_to_pods_with_legs_alone() -> None:
    peers = (legged(2), peer(5))
    made = backend("eth1").plan(ME, peers, ClusterView(peers))
    assert made.leg is not None and made.leg.networks == ("10.244.2.0/24", "fd44:0:0:2::/64")
    assert made.leg.gateways == ()
    [table] = made.values
    assert "10.244.5.0/24" not in str(table)


def test_an_obstacle_leaves_plain_routes_and_is_named() -> None:
    busy = {**ME.underlay.devices, "podwire-br-port": Device(1500, "podwire-bridge", "", "macvlan", "eth0")}
    for me, reason in (
        (replace(ME, leg_obstacle="policies are in force"), "policies are in force"),
        (
            replace(ME, underlay=replace(ME.underlay, devices=busy)),
            "eth0 of node node-1 has the macvlan device podwire-br-port, "
            "and the kernel lets no device carry both kinds"
            " (delete podwire-br-port, or set another uplink)",
        ),
    ):
        made = backend().plan(me, [legged(2)], ClusterView((legged(2),)))
        assert made.leg is None and not made.values and len(made.network.routes) == 2
        assert made.degraded == f"pods have no ipvlan legs, and their nodes route: {reason}"
        assert backend().announce(me) == {} and backend("eth1").announce(ME) == LEGS


def test_an_announced_leg_stays_while_its_backend_is_in_use() -> None:
    settings = RoutingSettings(backend="ipvlan")
    loaded = settings.load()
    for me, peers, kind, details in (
        (announcing("macvlan"), [legged(2, "macvlan")], "macvlan", {"macvlan": {"legs": True}}),
        (announcing("ipvlan"), [legged(2, "macvlan")], "ipvlan", LEGS),
        (ME, [legged(2, "macvlan")], "ipvlan", LEGS),
        (announcing("ipvlan"), [legged(2)], "ipvlan", LEGS),
    ):
        made = plan(me, peers, settings, loaded)
        assert made.leg is not None and made.leg.kind == kind
        assert {key: fact for key, fact in made.facts.details.items() if key != "mtu"} == details


def test_another_mode_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"routing\.ipvlan\.mode.*l4"):
        parse_settings({"backend": "ipvlan", "ipvlan": {"mode": "l4"}}, "f")

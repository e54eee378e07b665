"""Profiles: which peers stand out, and how many tables that takes."""

from podwire.model.policy import IPBlock
from podwire.policy.compiled import CompiledPolicy, CompiledRule
from podwire.policy.ports import EVERYTHING, Ruling, selection
from podwire.policy.profile import PeerMatch, Profile, ProfileKey

HTTP = selection({"TCP": [(80, 80)]})


def profile(*rules: CompiledRule, direction: str = "Ingress") -> Profile:
    policy = CompiledPolicy(key="shop/db", tier="Namespace", subject=1, rules={direction: rules}, names={})
    return Profile(ProfileKey(direction=direction), (policy,))


def rule(**fields: object) -> CompiledRule:
    return CompiledRule(tier="Namespace", policy="shop/db", place=0, **fields)  # type: ignore[arg-type]


def test_a_peer_that_fares_as_its_surroundings_has_no_entry() -> None:
    created = profile(rule(blocks=(IPBlock(cidr="10.0.0.0/8"),), selectors=frozenset({7}), ports=HTTP))
    inside = PeerMatch(address="10.0.0.1", selectors=frozenset({7}))
    outside = PeerMatch(address="11.0.0.1", selectors=frozenset({7}))
    assert created.table(inside) is None
    assert created.table(outside) is not None
    assert not created.follow(inside, inside.address)
    assert created.follow(outside, outside.address)
    assert not created.follow(outside, outside.address)
    assert list(created.peers.hosts) == ["11.0.0.1"]
    assert created.follow(None, outside.address)
    assert created.peers.hosts == {}


def test_ten_thousand_peers_share_their_tables() -> None:
    created = profile(rule(selectors=frozenset({7}), ports=HTTP), rule(selectors=frozenset({8}), ports=EVERYTHING))
    for number in range(10_000):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        created.follow(PeerMatch(address=address, selectors=frozenset({7, number % 3 + 7})), address)
    assert len(created.peers.hosts) == 10_000
    assert len({id(table) for table in created.peers.hosts.values()}) == 2


def test_the_own_node_is_always_accepted() -> None:
    created = profile()
    assert created.peers.default.uniform == Ruling(accept=False)
    table = created.table(PeerMatch(address="192.168.99.1", own_node=True))
    assert table is not None
    assert table.uniform == Ruling(accept=True)


def test_named_ports_are_the_destinations() -> None:
    out = profile(rule(everyone=True, ports=selection({}), names=(("http", "TCP"),)), direction="Egress")
    table = out.table(PeerMatch(address="10.0.0.1", named=(("http", "TCP", 8080), ("http", "UDP", 53))))
    assert table is not None
    assert table.ruling("TCP", 8080).accept
    assert not table.ruling("UDP", 53).accept
    incoming = profile(rule(everyone=True, ports=selection({}), names=(("http", "TCP"),)))
    assert incoming.table(PeerMatch(address="10.0.0.1", named=(("http", "TCP", 8080),))) is None


def test_table_of_an_address() -> None:
    created = profile(rule(blocks=(IPBlock(cidr="10.0.0.0/8"),), ports=HTTP))
    created.follow(PeerMatch(address="192.168.99.1", own_node=True), "192.168.99.1")
    assert created.at("10.1.1.1").ruling("TCP", 80).accept
    assert not created.at("10.1.1.1").ruling("TCP", 81).accept
    assert created.at("192.168.99.1").ruling("TCP", 81).accept
    assert created.at("fd00::1") == created.peers.default
    assert [(first >> 24, last >> 24) for first, last, _ in created.peers.ranges(4)] == [(10, 10)]

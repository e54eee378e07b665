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
    made = profile(rule(blocks=(IPBlock(cidr="10.0.0.0/8"),), selectors=frozenset({7}), ports=HTTP))
    inside = PeerMatch(address="10.0.0.1", selectors=frozenset({7}))
    outside = PeerMatch(address="11.0.0.1", selectors=frozenset({7}))
    assert made.table(inside) is None
    assert made.table(outside) is not None
    assert not made.follow(inside, inside.address)
    assert made.follow(outside, outside.address)
    assert not made.follow(outside, outside.address)
    assert list(made.peers.hosts) == ["11.0.0.1"]
    assert made.follow(None, outside.address)
    assert made.peers.hosts == {}


def test_ten_thousand_peers_share_their_tables() -> None:
    made = profile(rule(selectors=frozenset({7}), ports=HTTP), rule(selectors=frozenset({8}), ports=EVERYTHING))
    for number in range(10_000):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        made.follow(PeerMatch(address=address, selectors=frozenset({7, number % 3 + 7})), address)
    assert len(made.peers.hosts) == 10_000
    assert len({id(table) for table in made.peers.hosts.values()}) == 2


def test_the_own_node_is_always_accepted() -> None:
    made = profile()
    assert made.peers.default.uniform == Ruling(accept=False)
    table = made.table(PeerMatch(address="192.168.99.1", own_node=True))
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
    made = profile(rule(blocks=(IPBlock(cidr="10.0.0.0/8"),), ports=HTTP))
    made.follow(PeerMatch(address="192.168.99.1", own_node=True), "192.168.99.1")
    assert made.at("10.1.1.1").ruling("TCP", 80).accept
    assert not made.at("10.1.1.1").ruling("TCP", 81).accept
    assert made.at("192.168.99.1").ruling("TCP", 81).accept
    assert made.at("fd00::1") == made.peers.default
    assert [(first >> 24, last >> 24) for first, last, _ in made.peers.ranges(4)] == [(10, 10)]

"""Addresses, routes, neighbours, entries and rules as rtnetlink messages and back."""

import contextlib
import ipaddress
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ProtocolError
from podwire.kernel import neighbour_lists, route_codec, route_lists, rule_codec
from podwire.kernel.attributes import attribute
from podwire.kernel.uapi import NDA_CACHEINFO
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route

INDEXES = {"eth0": 2, "lo": 1}
NAMES = {index: name for name, index in INDEXES.items()}

networks4 = st.tuples(st.ip_addresses(v=4), st.integers(0, 32))
networks6 = st.tuples(st.ip_addresses(v=6), st.integers(0, 128))


def _network(pair: tuple[object, int]) -> str:
    return str(ipaddress.ip_network(f"{pair[0]}/{pair[1]}", strict=False))


def _routes(version: Literal[4, 6]) -> st.SearchStrategy[Route]:
    ips = st.ip_addresses(v=version).map(str)
    return st.builds(
        Route,
        (networks4 if version == 4 else networks6).map(_network),
        via=st.one_of(st.just(""), ips),
        link=st.sampled_from(["eth0", "lo"]),
        onlink=st.booleans(),
        src=st.one_of(st.just(""), ips),
        mtu=st.integers(0, 65535),
        proto=st.integers(3, 255),
        metric=st.integers(0, 2**32 - 1),
        table=st.integers(256, 2**32 - 1) | st.integers(1, 254),
        scope=st.sampled_from(["", "global", "link", "host"]),
    )


@pytest.mark.parametrize(("kind", "local"), [("local", True), ("unicast", False)])
def test_a_route_lookup_is_encoded_and_decoded(kind: str, local: bool) -> None:
    route = Route("fd44::7/128", link="eth0", kind=kind)
    assert route_codec.is_local(route_codec.encode_route(route, INDEXES)) == local
    asked = route_codec.encode_lookup("fd44::7")
    assert (asked[0], asked[1]) == (10, 128)  # AF_INET6
    assert asked.endswith(ipaddress.ip_address("fd44::7").packed)
    assert route_codec.encode_lookup("10.0.0.7")[:2] == bytes((2, 32))  # AF_INET


@given(st.one_of(_routes(4), _routes(6)))
def test_routes_round_trip(route: Route) -> None:
    assert route_codec.decode_route(route_codec.encode_route(route, INDEXES), NAMES) == route


def _alike(version: Literal[4, 6]) -> st.SearchStrategy[Route]:
    """Routes of a few forms, some of which are of the same length."""
    ips = st.ip_addresses(v=version).map(str)
    return st.builds(
        Route,
        (networks4 if version == 4 else networks6).map(_network),
        via=st.just("") | ips,
        src=st.just("") | ips,
        link=st.just("eth0"),
        proto=st.just(113),
    )


@given(st.lists(st.one_of(_alike(4), _alike(6), _routes(4), _routes(6)), max_size=40))
def test_many_routes_decode_as_each_alone(routes: list[Route]) -> None:
    payloads = [route_codec.encode_route(route, INDEXES) for route in routes]
    alone = [route_codec.decode_route(payload, NAMES) for payload in payloads]
    assert list(route_lists.decode_routes(payloads, NAMES)) == alone


def test_routes_of_one_length_and_two_forms_are_told_apart() -> None:
    pair = (
        Route("10.1.0.0/16", via="10.0.0.2", link="eth0", proto=113, scope="link"),
        Route("10.2.0.0/16", src="10.0.0.2", link="eth0", proto=113, scope="link"),
    )
    routes = [*pair, *reversed(pair), *pair, Route("default", via="10.0.0.2", link="eth0", proto=113)] * 3
    payloads = [route_codec.encode_route(route, INDEXES) for route in routes]
    assert len({len(payload) for payload in payloads[:6]}) == 1
    assert list(route_lists.decode_routes(payloads, NAMES)) == routes


_TIMES = st.binary(min_size=16, max_size=16).map(lambda data: attribute(NDA_CACHEINFO, data) + attribute(4, data[:4]))
_ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"])
_MACS = st.sampled_from(["02:00:00:00:00:01", "02:00:00:00:00:02"])
_NEIGHBOURS = st.builds(
    Neighbour, st.sampled_from(["eth0", "lo"]), _ADDRESSES, _MACS, st.booleans(), st.booleans(), proto=st.integers(0, 9)
)
_ENTRIES = st.builds(Fdb, st.sampled_from(["eth0", "lo"]), _MACS, st.just("") | _ADDRESSES, st.booleans())


@given(st.lists(st.tuples(_NEIGHBOURS, _TIMES, st.booleans())))
def test_many_neighbours_decode_as_each_alone(values: list[tuple[Neighbour, bytes, bool]]) -> None:
    encoded = [(route_codec.encode_neighbour(value, INDEXES), times, last) for value, times, last in values]
    payloads = [body + times if last else body for body, times, last in encoded]
    names = {2: "eth0"}
    alone = [route_codec.decode_neighbour(payload, names) for payload in payloads]
    assert list(neighbour_lists.decode_neighbours(payloads, names)) == alone


@given(st.lists(st.tuples(_ENTRIES, _TIMES)))
def test_many_forwarding_entries_decode_as_each_alone(values: list[tuple[Fdb, bytes]]) -> None:
    payloads = [route_codec.encode_fdb(value, INDEXES) + times for value, times in values]
    alone = [route_codec.decode_fdb(payload, NAMES) for payload in payloads]
    assert list(neighbour_lists.decode_fdb(payloads, NAMES)) == alone


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit", "throw"])
def test_routes_without_device(kind: str) -> None:
    route = Route("fd00::/64", kind=kind, proto=113)
    assert route_codec.decode_route(route_codec.encode_route(route, INDEXES), NAMES) == route


@pytest.mark.parametrize(
    "route",
    [
        Route("10.0.0.0/8", link="eth0", encap="ip", tunnel_id=2**24 - 1, tunnel_dst="10.0.0.9", tunnel_ttl=64),
        Route("fd00::/8", link="eth0", encap="ip6", tunnel_id=7, tunnel_dst="fd00::9", tunnel_hop_limit=64),
    ],
    ids=str,
)
def test_a_route_with_an_outer_header(route: Route) -> None:
    assert route_codec.decode_route(route_codec.encode_route(route, INDEXES), NAMES) == route


def test_an_ipv4_route_through_an_ipv6_next_hop() -> None:
    route = Route("10.0.0.0/8", via="fe80::1", link="eth0", proto=5)
    assert route_codec.decode_route(route_codec.encode_route(route, INDEXES), NAMES) == route


@pytest.mark.parametrize("route", [Route("10.0.0.0/8", proto=2), Route("10.0.0.1/32", table=255, proto=9)], ids=str)
def test_the_kernel_s_own_routes_are_left_out(route: Route) -> None:
    assert route_codec.decode_route(route_codec.encode_route(route, INDEXES), NAMES) is None


@given(st.one_of(networks4, networks6), st.booleans(), st.booleans(), st.integers(0, 255))
def test_addresses_round_trip(pair: tuple[object, int], nodad: bool, noprefixroute: bool, proto: int) -> None:
    address = Address("eth0", f"{pair[0]}/{pair[1]}", nodad=nodad, noprefixroute=noprefixroute, proto=proto)
    assert route_codec.decode_address(route_codec.encode_address(address, INDEXES), NAMES) == address


@given(st.ip_addresses(), st.binary(min_size=6, max_size=6), st.integers(0, 255))
def test_neighbours_round_trip(ip: object, mac: bytes, proto: int) -> None:
    neighbour = Neighbour("eth0", str(ip), mac.hex(":"), proto=proto)
    assert route_codec.decode_neighbour(route_codec.encode_neighbour(neighbour, INDEXES), NAMES) == neighbour
    proxy = Neighbour("eth0", str(ip), proxy=True, proto=proto)
    assert route_codec.decode_neighbour(route_codec.encode_neighbour(proxy, INDEXES), NAMES) == proxy


def test_learned_neighbours_are_left_out() -> None:
    learned = Neighbour("eth0", "10.0.0.1", "02:00:00:00:00:01", permanent=False)
    assert route_codec.decode_neighbour(route_codec.encode_neighbour(learned, INDEXES), NAMES) is None


@given(st.binary(min_size=6, max_size=6), st.one_of(st.just(""), st.ip_addresses().map(str)), st.booleans())
def test_forwarding_entries_round_trip(mac: bytes, dst: str, bridge: bool) -> None:
    fdb = Fdb("eth0", mac.hex(":"), dst, bridge)
    assert route_codec.decode_fdb(route_codec.encode_fdb(fdb, INDEXES), NAMES) == fdb


@given(
    st.builds(
        FibRule,
        st.integers(0, 2**32 - 1),
        src=networks4.map(_network).filter(lambda text: text != "0.0.0.0/0"),
        mark=st.integers(1, 2**32 - 1),
        mask=st.integers(0, 2**32 - 1),
        table=st.integers(0, 2**32 - 1),
        iif=st.sampled_from(["", "eth0"]),
        oif=st.sampled_from(["", "eth1"]),
        ipproto=st.sampled_from(["", "tcp", "udp", "sctp", "icmp", "47"]),
        sport=st.sampled_from(["", "53"]),
        dport=st.sampled_from(["", "1", "8000-8080", "65535"]),
        kind=st.sampled_from(["lookup", "blackhole", "prohibit", "unreachable"]),
        proto=st.integers(0, 255),
    )
)
def test_rules_round_trip(rule: FibRule) -> None:
    assert rule_codec.decode_rule(rule_codec.encode_rule(rule)) == rule


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="eth9"):
        route_codec.encode_route(Route("10.0.0.0/8", link="eth9"), INDEXES)


@given(st.binary(min_size=12, max_size=80))
def test_bytes_from_elsewhere_are_refused_or_read(data: bytes) -> None:
    for reading in (
        route_codec.decode_route,
        route_codec.decode_address,
        route_codec.decode_neighbour,
        route_codec.decode_fdb,
        lambda data, names: rule_codec.decode_rule(data),
    ):
        with contextlib.suppress(ProtocolError, ValueError):
            assert str(reading(data, NAMES)), "what is read has a text form"

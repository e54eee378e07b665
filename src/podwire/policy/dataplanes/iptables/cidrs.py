"""Ranges of addresses as networks with longest-prefix match (pure).

A set of networks returns the longest network that contains an address, so nested networks stay as they are: a block of
a rule and each of its exceptions are one element each, and each element holds the table for its addresses that no
longer network contains. The kernel tries each prefix length in the set, longest first. It accepts no network of length
0: the table of that network becomes the default for all other addresses.
"""

from bisect import bisect_right
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from podwire.model.policy import IPBlock
from podwire.policy.hostgroups import HostGroup
from podwire.policy.profile import Profile

_BITS = {4: 32, 6: 128}


def networks(profile: Profile, family: int) -> tuple[dict[str, HostGroup], HostGroup]:
    """The group with the table of each network, exact addresses aside, and that of all addresses outside networks."""
    tables = _at_borders(_texts(profile), profile, family)
    everywhere = tables.pop("0.0.0.0/0" if family == 4 else "::/0", profile.peers.surroundings())
    return tables, everywhere


def _texts(profile: Profile) -> Iterable[str]:
    blocks: Iterable[IPBlock] = (block for rule in profile.rules for block in rule.blocks)
    for block in blocks:
        yield block.cidr
        yield from block.excepted


def _at_borders(texts: Iterable[str], profile: Profile, family: int) -> dict[str, HostGroup]:
    """The table of each network for addresses outside longer networks; networks without such addresses are left out."""
    spans = _spans(texts, family)
    ranges = profile.peers.ranges(family)
    starts = [first for first, _, _ in ranges]
    tables: dict[str, HostGroup] = {}
    for number, (first, length) in enumerate(spans):
        address = _own_address(number, spans, _BITS[family])
        if address is None:
            continue
        index = bisect_right(starts, address) - 1
        table = ranges[index][2] if index >= 0 and address <= ranges[index][1] else profile.peers.surroundings()
        network = IPv6Network((first, length)) if family == 6 else IPv4Network((first, length))
        tables[str(network.network_address) if length == _BITS[family] else str(network)] = table
    return tables


def _spans(texts: Iterable[str], family: int) -> list[tuple[int, int]]:
    """First address and prefix length of each network, once each; an outer network comes before its inner ones."""
    spans = set()
    for text in texts:
        try:
            network = ip_network(text.strip(), strict=False)
        except ValueError:
            continue
        if network.version == family:
            spans.add((int(network.network_address), network.prefixlen))
    return sorted(spans)


def _own_address(number: int, spans: list[tuple[int, int]], bits: int) -> int | None:
    """The first address of a network that no longer network contains; None: longer networks cover the whole network."""
    first, length = spans[number]
    end = first + (1 << bits - length)
    at = first
    for inner, inner_length in spans[number + 1 :]:
        if inner > at or inner >= end:
            break
        at = max(at, inner + (1 << bits - inner_length))
    return at if at < end else None

"""The nftables table of load balancers on a node (pure).

The proxy sends packets to the address and port of a Service to its endpoints, before this table. What still has such a
destination belongs to no Service: to a port that none has, or while the rules of the proxy are missing. Without this
table, programs of the node that listen at all addresses would answer there (``input``), and a router that has the
address by BGP and a node would send the packet to each other until its TTL ends (``forward``). Echo requests to an
address on a device are answered.

The priority is behind that of IPVS (98 and 99 in the hook ``input``), which takes its packets there.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from podwire.loadbalancer.protection import Protection, protection_chains, protection_sets
from podwire.loadbalancer.ranges import Address
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Rule
from podwire.state.nft_text import parse_rule

TABLE = "podwire-loadbalancer"
COMMENT = "podwire loadbalancer"
_PRIORITY = 110
_FAMILIES = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}


def guard_table(addresses: Iterable[Address], protections: Iterable[Protection] = ()) -> Table:
    """The table for the addresses of all Services, with the limits of some."""
    balanced, limited = tuple(addresses), tuple(protections)
    sets: list[Set] = []
    rules: dict[str, list[Rule]] = {"input": [], "forward": []}
    for version, (word, kind) in _FAMILIES.items():
        declared = Set(name=f"balanced{version}", key=(kind,), comment="addresses of load balancers")
        own = [declared.element(str(address)) for address in balanced if address.version == version]
        sets.append(declared.with_elements(own))
        match = f"{word} daddr @balanced{version}"
        ports = parse_rule(f"{match} meta l4proto {{ tcp, udp, sctp }} counter drop")
        rules["input"].append(replace(ports, comment="no Service has the port"))
        rules["forward"].append(replace(parse_rule(f"{match} counter drop"), comment="no Service has the port"))
    chains = tuple(
        Chain(name=name, type="filter", hook=name, priority=_PRIORITY, rules=tuple(entries))
        for name, entries in rules.items()
    )
    sets += protection_sets(limited)
    chains += tuple(protection_chains(limited))
    return Table(
        family="inet",
        name=TABLE,
        comment=COMMENT,
        sets=tuple(sorted(sets, key=lambda declared: declared.name)),
        chains=tuple(sorted(chains, key=lambda chain: chain.name)),
    )

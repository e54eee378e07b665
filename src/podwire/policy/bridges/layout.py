"""The table of the nftables family ``bridge``, which filters the frames of a bridge's ports (pure).

The IP hooks see all pods of a bridge behind one device, so policies identify these pods by address. This is safe only
if no pod can use the address of another pod. This table checks that for each port::

    prerouting   IP, IPv6, ARP and neighbour advertisements from a pod's port have the pod's address;
                 a pod's address comes only from its own port; no pod announces itself as a router
    forward      isolated pods receive nothing from other ports and send nothing to them

A pod is isolated when a policy selects it and packets between the ports of its bridge pass no IP hook
(``br_netfilter``): on some kernels, tables of this family have no connection tracking. So this table cannot tell a
reply from a request and cannot enforce policies. Isolated pods still reach everything outside of the bridge.

Frames of other protocols pass, and hardware addresses are not checked: the plugin that made the bridge can check them
(``macspoofchk`` of ``bridge``).
"""

from collections.abc import Iterable

import msgspec

from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_text import parse_rule

FAMILY = "bridge"
TABLE = "podwire-policy"

_PRIORITY = -310
"""Before the usual priorities of bridge tables, and before br_netfilter's own hooks at 0."""

_ADVERT = "icmpv6 type nd-neighbor-advert icmpv6 taddr"
_PREROUTING = (
    "iifname . ip saddr @own4 accept",
    "ip saddr @pods4 counter drop",
    "meta protocol ip iifname @ports counter drop",
    f"iifname @ports {_ADVERT} != fe80::/10 iifname . icmpv6 taddr != @own6 counter drop",
    "iifname @ports meta protocol ip6 icmpv6 type { nd-router-advert, nd-redirect } counter drop",
    "iifname . ip6 saddr @own6 accept",
    "ip6 saddr @pods6 counter drop",
    "iifname @ports ip6 saddr != fe80::/10 ip6 saddr != :: counter drop",
    "iifname . arp saddr ip @own4 accept",
    "arp saddr ip @pods4 counter drop",
    "iifname @ports arp saddr ip != 0.0.0.0 counter drop",
)
_FORWARD = (
    "meta protocol ip iifname @shut4 counter drop",
    "meta protocol ip oifname @shut4 counter drop",
    "meta protocol ip6 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
    "meta protocol ip6 iifname @shut6 counter drop",
    "meta protocol ip6 oifname @shut6 counter drop",
)


class BridgePort(msgspec.Struct, frozen=True, kw_only=True):
    """One port of a bridge."""

    name: str
    addresses: tuple[str, ...]
    isolated: frozenset[str] = frozenset()
    """The families (``ip``, ``ip6``) in which the port is isolated from the other ports."""
    unknown: bool = False
    """Whether no known pod has this port."""


def table(ports: Iterable[BridgePort]) -> Table | None:
    """The table for these ports; None when there are none."""
    pods = tuple(ports)
    if not pods:
        return None
    return Table(
        family=FAMILY,
        name=TABLE,
        comment="podwire: NetworkPolicy on bridges",
        sets=_sets(pods),
        chains=(_chain("forward", _FORWARD), _chain("prerouting", _PREROUTING)),
    )


def _chain(hook: str, texts: tuple[str, ...]) -> Chain:
    return Chain(
        name=hook, type="filter", hook=hook, priority=_PRIORITY, rules=tuple(parse_rule(text) for text in texts)
    )


def _sets(pods: tuple[BridgePort, ...]) -> tuple[Set, ...]:
    sets = [_filled("ports", ("ifname",), (pod.name for pod in pods))]
    for number, family, kind in (("4", "ip", "ipv4_addr"), ("6", "ip6", "ipv6_addr")):
        pairs = [(pod.name, ip) for pod in pods for ip in pod.addresses if (":" in ip) == (family == "ip6")]
        sets.append(_filled(f"own{number}", ("ifname", kind), (f"{name} . {address}" for name, address in pairs)))
        sets.append(_filled(f"pods{number}", (kind,), (address for _, address in pairs)))
        sets.append(_filled(f"shut{number}", ("ifname",), (pod.name for pod in pods if family in pod.isolated)))
    return tuple(sorted(sets, key=lambda declared: declared.name))


def _filled(name: str, key: tuple[str, ...], texts: Iterable[str]) -> Set:
    declared = Set(name=name, key=key)
    return declared.with_elements(declared.element(text) for text in texts)

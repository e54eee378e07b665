"""The table that looks at the frames of a bridge's ports, in the family ``bridge`` (pure).

To the hooks of IP all pods of a bridge are one device, so policies know them by their addresses there. That holds as
long as nobody uses another's address, which this table sees to, port by port::

    prerouting   IP, IPv6, ARP and neighbour advertisements from a pod's port have the pod's address;
                 a pod's address comes from its port alone; no pod is a router to others
    forward      pods that are shut off get nothing from other ports and send nothing there

Pods are shut off here when a policy selects them and packets between the ports of their bridge pass no hook of IP
(``br_netfilter``): a table of this family has no connections on some kernels, so it could not tell an answer from a
request and cannot enforce policies by itself. They still have the way to everybody outside of the bridge.

Frames of protocols other than these pass, and hardware addresses are not looked at: those are for the plugin in front
(``macspoofchk`` of ``bridge``).
"""

from collections.abc import Iterable

import msgspec

from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_text import parse_rule

FAMILY = "bridge"
TABLE = "podwire-policy"

_PRIORITY = -310
"""Before anything that is usual there, and before br_netfilter's own hooks at 0."""

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


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port of a bridge."""

    name: str
    addresses: tuple[str, ...]
    shut: frozenset[str] = frozenset()
    """The families (``ip``, ``ip6``) in which it is cut off from the other ports."""
    stranger: bool = False
    """Whether nobody knows whose it is."""


def table(ports: Iterable[Port]) -> Table | None:
    """The table for these pods; None when there are none."""
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


def _sets(pods: tuple[Port, ...]) -> tuple[Set, ...]:
    found = [_filled("ports", ("ifname",), (pod.name for pod in pods))]
    for number, family, kind in (("4", "ip", "ipv4_addr"), ("6", "ip6", "ipv6_addr")):
        pairs = [(pod.name, each) for pod in pods for each in pod.addresses if (":" in each) == (family == "ip6")]
        found.append(_filled(f"own{number}", ("ifname", kind), (f"{name} . {address}" for name, address in pairs)))
        found.append(_filled(f"pods{number}", (kind,), (address for _, address in pairs)))
        found.append(_filled(f"shut{number}", ("ifname",), (pod.name for pod in pods if family in pod.shut)))
    return tuple(sorted(found, key=lambda each: each.name))


def _filled(name: str, key: tuple[str, ...], texts: Iterable[str]) -> Set:
    declared = Set(name=name, key=key)
    return declared.with_elements(declared.element(text) for text in texts)

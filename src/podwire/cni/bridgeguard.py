"""The source guard of the bridge of pods: each port sends from its pod's own addresses alone (pure).

On a device of its own, ``rp_filter`` drops packets with another pod's address; behind a bridge all pods have the same
device. So a table of the nftables family ``bridge`` checks the frames of each port before they reach the node or
another port::

    IP, IPv6, ARP            from the pod's own addresses, or without one (``0.0.0.0``, ``::``, link-local)
    neighbour advertisements for the pod's own addresses
    router advertisements    never

The rules name the ports of podwire's pods, so frames of other ports and bridges pass. Hardware addresses are checked by
the port itself (:mod:`podwire.cni.podbridge`). The part ``policy`` has a table of its own, about ports of any bridge;
this table needs no other part of the agent.

Cost: a look-up per frame of a pod; one element per port and one per address, in one transaction per ADD and DEL (0.1 to
0.2 ms). Sources: net/bridge/netfilter/nf_tables_bridge.c, nft(8).
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from podwire.cni.ipam.ledger import Attachment
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_text import parse_rule

FAMILY = "bridge"
TABLE = "podwire-bridge"

_PRIORITY = -320
"""Before the table of policies (-310) and the usual priorities of bridge tables."""
_PACKED = 4096
"""More than the addresses of a node's pods."""
_ADVERT = "icmpv6 type nd-neighbor-advert icmpv6 taddr"
_RULES = (
    "iifname . ip saddr @own4 accept",
    "meta protocol ip iifname @ports counter drop",
    f"iifname @ports {_ADVERT} != fe80::/10 iifname . icmpv6 taddr != @own6 counter drop",
    "iifname @ports meta protocol ip6 icmpv6 type { nd-router-advert, nd-redirect } counter drop",
    "iifname . ip6 saddr @own6 accept",
    "iifname @ports ip6 saddr != fe80::/10 ip6 saddr != :: counter drop",
    "iifname . arp saddr ip @own4 accept",
    "iifname @ports arp saddr ip != 0.0.0.0 counter drop",
)


def plan(attachments: Iterable[Attachment]) -> Table | None:
    """The table for all pods on the bridge; None when there is none."""
    bridged = [attachment for attachment in attachments if attachment.bridge]
    if not bridged:
        return None
    sets = (
        filled("own4", ("ifname", "ipv4_addr"), _own(bridged, 4)),
        filled("own6", ("ifname", "ipv6_addr"), _own(bridged, 6)),
        filled("ports", ("ifname",), (attachment.host_link for attachment in bridged)),
    )
    return Table(family=FAMILY, name=TABLE, comment="podwire cni", sets=sets, chains=_chains())


@lru_cache(1)
def _chains() -> tuple[Chain, ...]:
    rules = tuple(map(parse_rule, _RULES))
    return (Chain(name="sources", type="filter", hook="prerouting", priority=_PRIORITY, rules=rules),)


def _own(attachments: Iterable[Attachment], version: int) -> Iterator[str]:
    """The port and address of each pod."""
    for attachment in attachments:
        yield from (f"{attachment.host_link} . {ip}" for ip in attachment.ips if ip.version == version)


def filled(name: str, key: tuple[str, ...], texts: Iterable[str]) -> Set:
    """A set with elements of these texts."""
    return Set(name=name, key=key, elements=dict(_packed(key, text) for text in texts))


@lru_cache(_PACKED)
def _packed(key: tuple[str, ...], text: str) -> tuple[bytes, Element]:
    return Set(name="", key=key).element(text)

"""The source guard of pods with devices of their own: their IPv6 packets have an address of the pod as source (pure).

``rp_filter`` on a pod's device drops IPv4 packets with the address of another pod; Linux has no such setting for IPv6.
So a table of the family ``ip6`` checks the packets of pods' devices before they reach the node or another pod. Packets
from the addresses of the pod pass, and those without one (``::``) and from link-local addresses, which do not leave the
device.

The rules name the devices of podwire's pods, so packets of other devices pass. Pods on a bridge have a table of their
own (:mod:`podwire.cni.bridgeguard`). The part ``policy`` drops such packets where it forwards them; this table needs no
other part of the agent, and also protects the node itself.

Cost: a look-up per IPv6 packet of a pod, two per IPv6 packet of another device; one element per device and one per IPv6
address, in one transaction per ADD and DEL of a pod with IPv6 (0.1 to 0.2 ms). Pods with IPv4 alone need nothing.
Source: ``fib_validate_source`` in net/ipv4/fib_frontend.c, which IPv6 does not have.
"""

from collections.abc import Iterable
from functools import lru_cache

from podwire.cni.bridgeguard import filled
from podwire.cni.ipam.ledger import Attachment
from podwire.state.nft import Chain, Table
from podwire.state.nft_text import parse_rule

FAMILY = "ip6"
TABLE = "podwire-sources"

_PRIORITY = -320
"""Before connection tracking (-200) and the usual tables of the hook ``raw`` (-300)."""
_RULES = (
    "iifname . ip6 saddr @own accept",
    "iifname @devices ip6 saddr != fe80::/10 ip6 saddr != :: counter drop",
)


def is_guarded(attachment: Attachment) -> bool:
    """Whether a pod needs the table."""
    return not attachment.bridge and any(":" in text for text in attachment.addresses)


def plan(attachments: Iterable[Attachment]) -> Table | None:
    """The table for all pods with IPv6 and a device of their own; None when there is none."""
    guarded = [attachment for attachment in attachments if is_guarded(attachment)]
    if not guarded:
        return None
    own = (f"{attachment.host_link} . {text}" for attachment in guarded for text in attachment.addresses if ":" in text)
    sets = (
        filled("devices", ("ifname",), (attachment.host_link for attachment in guarded)),
        filled("own", ("ifname", "ipv6_addr"), own),
    )
    return Table(family=FAMILY, name=TABLE, comment="podwire cni", sets=sets, chains=_chains())


@lru_cache(1)
def _chains() -> tuple[Chain, ...]:
    rules = tuple(map(parse_rule, _RULES))
    return (Chain(name="sources", type="filter", hook="prerouting", priority=_PRIORITY, rules=rules),)

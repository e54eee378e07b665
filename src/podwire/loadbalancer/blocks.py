"""Who holds each address, written down so that no address is handed out twice (pure).

The holders of 256 neighbouring addresses are one record, a ConfigMap with an entry ``address: namespace/name/uid`` for
each address in use (several holders are separated by spaces). Before the status of a Service shows an address, the
record has it, and a record is only ever replaced at the version that was read: of two controllers that hand out one
address at the same time, the API server refuses the second. A controller that has lost its lease, but does not know it
yet, cannot do harm either. Records outlive the controller.
"""

from collections.abc import Mapping

import msgspec

from podwire.loadbalancer.ranges import Address, parse_address

_BITS = 8


class Holder(msgspec.Struct, frozen=True, gc=False, order=True):
    """A Service that holds an address; a Service that was made again has another ``uid``."""

    key: str
    uid: str

    def __str__(self) -> str:
        return f"{self.key}/{self.uid}"


Holders = Mapping[Address, tuple[Holder, ...]]


def block_name(address: Address) -> str:
    """The name of the record with an address: ``load-balancer-10.89.0.0``, ``load-balancer-fd89-0000-...``."""
    first = type(address)(int(address) >> _BITS << _BITS)
    return f"load-balancer-{first.exploded.replace(':', '-') if first.version == 6 else first}"


def read_block(data: Mapping[str, str]) -> dict[Address, tuple[Holder, ...]]:
    """The holders in a record; entries that are none are left out."""
    holders: dict[Address, tuple[Holder, ...]] = {}
    for text, value in data.items():
        address = parse_address(text.replace("_", ":"))
        entries = tuple(Holder(key, uid) for key, _, uid in (item.rpartition("/") for item in value.split()) if key)
        if address is not None and entries:
            holders[address] = entries
    return holders


def render_block(holders: Holders) -> dict[str, str]:
    """The record of these holders; keys of a ConfigMap have no colon."""
    ordered = sorted(holders, key=int)
    return {str(a).replace(":", "_"): " ".join(map(str, sorted(holders[a]))) for a in ordered if holders[a]}


def with_holder(holders: tuple[Holder, ...], holder: Holder, *, holds: bool) -> tuple[Holder, ...]:
    """The holders of one address when a Service holds it, or no longer does."""
    entries = tuple(entry for entry in holders if entry.key != holder.key)
    return tuple(sorted((*entries, holder))) if holds else entries

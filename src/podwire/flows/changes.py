"""Changes of a node's kernel with their times, as values and lines. Pure.

The recorder (:mod:`podwire.flows.recording`) writes one line of JSON for each change; a report reads them back. Changes
of one kind that arrive together are one line with their number, so that a transaction of 10,000 elements is a line.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

OWNERS = {112: "cni", 113: "routing", 114: "fabric", 115: "loadbalancer", 116: "cni", 12: "bird", 2: "kernel"}
"""Names of the route protocols that mark podwire's objects, and of two more."""


class KernelChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of one kind at one moment.

    ``at`` is in seconds since 1970; ``subject`` is ``link``, ``route``, ``nftables`` ...; ``process`` is the program
    that made it, where the kernel names it.
    """

    at: float
    subject: str
    text: str
    number: int = 1
    process: str = ""
    node: str = ""


class NetworkEvent(msgspec.Struct, frozen=True):
    """One notification of rtnetlink; ``proto`` is the owner mark."""

    subject: str
    removed: bool
    device: str
    proto: int
    dst: str


def merge(events: Iterable[NetworkEvent], at: float) -> list[KernelChange]:
    """One change for each kind of event, in the order of their first events; learned neighbours are left out."""
    numbers: Counter[tuple[str, bool, str, int]] = Counter()
    first: dict[tuple[str, bool, str, int], str] = {}
    for event in events:
        if event.subject == "neighbour" and not event.proto:
            continue
        key = (event.subject, event.removed, event.device, event.proto)
        numbers[key] += 1
        first.setdefault(key, event.dst)
    return [
        KernelChange(at=at, subject=key[0], text=_text(key, first[key], number), number=number)
        for key, number in numbers.items()
    ]


def _text(key: tuple[str, bool, str, int], dst: str, number: int) -> str:
    subject, removed, device, proto = key
    if subject == "lost":
        return "notifications were lost: any object may have changed"
    target = f" {dst}" if dst else ""
    more = f" and {number - 1} more" if number > 1 else ""
    on = f" dev {device}" if device else ""
    owner = f" of {OWNERS.get(proto, f'protocol {proto}')}" if proto else ""
    return f"{'-' if removed else '+'}{subject}{target}{more}{on}{owner}"


def transaction(counts: Iterable[tuple[str, int]], process: str, at: float, *, missed: bool) -> KernelChange:
    """The change that a transaction of nftables is."""
    numbers = dict(counts)
    text = ", ".join(f"{name} x{number}" if number > 1 else name for name, number in sorted(numbers.items()))
    if missed:
        text = "notifications were lost: any table may have changed"
    return KernelChange(
        at=at, subject="nftables", text=text or "a generation without changes", number=max(1, sum(numbers.values())),
        process=process,
    )  # fmt: skip


def write(change: KernelChange) -> str:
    """A change as one line."""
    return msgspec.json.encode(change).decode()


def parse(log: str, node: str) -> list[KernelChange]:
    """The changes in a log, with the name of the node; other lines are left out."""
    changes = []
    for line in log.splitlines():
        try:
            change = msgspec.json.decode(line, type=KernelChange)
        except msgspec.DecodeError:
            continue
        changes.append(msgspec.structs.replace(change, node=node))
    return changes


def name_device(index: int, name_of: Callable[[int], str], names: dict[int, str]) -> str:
    """The name of a device by its index, also after it was deleted; ``names`` are those known so far."""
    if not index:
        return ""
    try:
        names[index] = name_of(index)
    except OSError:
        pass  # it is deleted
    return names.get(index, f"#{index}")

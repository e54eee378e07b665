"""A kind of kernel state that only tests register: queueing disciplines of routing, known by their handle."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence

import msgspec

from podwire.kernel import netns
from podwire.kernel.kinds import KernelKind, Watch
from podwire.state.drift import Difference
from podwire.state.kinds import Kind, Values
from podwire.state.network import OwnerMark

HANDLE = "7113:"


class Qdisc(msgspec.Struct, frozen=True):
    """The queueing discipline of a device, as tc(8) writes it."""

    device: str
    limit: int

    def lines(self) -> Iterator[str]:
        """The text: one line."""
        yield f"qdisc dev {self.device} pfifo limit {self.limit}"


def parse(lines: Sequence[str], _where: str) -> Values:
    """The qdiscs in lines of the text."""
    results = [re.fullmatch(r"qdisc dev (\S+) pfifo limit (\d+)", line) for line in lines]
    return tuple(Qdisc(match[1], int(match[2])) for match in results if match)


def _mark(owner: OwnerMark | None, _expected: Values) -> str | None:
    """The handle follows from the owner alone, so qdiscs that nobody wants any more are found too."""
    return HANDLE if owner is not None and owner.route_protocol == 113 else None


def compare(title: str, have: Values, expected: Values, _mark: object) -> Iterator[Difference]:
    """The lines that are in the kernel but not wanted, then the lines that are missing."""
    yield from (Difference(f"{title}: qdiscs", "-", next(item.lines())) for item in have if item not in expected)
    yield from (Difference(f"{title}: qdiscs", "+", next(item.lines())) for item in expected if item not in have)


KIND = Kind(Qdisc, parse, _mark, compare, lambda item: (("qdiscs", line) for line in item.lines()), ("qdisc ",))


def _tc(netns_path: object, *arguments: str) -> str:
    with netns.inside(str(netns_path)):
        return subprocess.run(["tc", *arguments], check=True, capture_output=True, text=True).stdout


def _read(netns_path: object, mark: str) -> tuple[Qdisc, ...]:
    result = json.loads(_tc(netns_path, "-j", "qdisc", "show"))
    return tuple(Qdisc(item["dev"], item["options"]["limit"]) for item in result if item["handle"] == mark)


def _apply(netns_path: object, mark: str, qdiscs: Sequence[Qdisc]) -> tuple[str, ...]:
    have = _read(netns_path, mark)
    for step in have:
        if step.device not in {other.device for other in qdiscs}:
            _tc(netns_path, "qdisc", "del", "dev", step.device, "root")
    steps = [item for item in qdiscs if item not in have]
    for step in steps:
        arguments = ("dev", step.device, "root", "handle", mark, "pfifo", "limit", str(step.limit))
        _tc(netns_path, "qdisc", "replace", *arguments)
    return tuple(str(item) for item in steps)


def _watch(_netns_path: object, _mark: str) -> Watch:
    raise NotImplementedError("routing compares further kinds every 30 s")


KERNEL_KIND = KernelKind(_read, _apply, _watch)

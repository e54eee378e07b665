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
    found = [re.fullmatch(r"qdisc dev (\S+) pfifo limit (\d+)", line) for line in lines]
    return tuple(Qdisc(match[1], int(match[2])) for match in found if match)


def _mark(owner: OwnerMark | None, _wanted: Values) -> str | None:
    """The handle follows from the owner alone, so qdiscs that nobody wants any more are found too."""
    return HANDLE if owner is not None and owner.route_protocol == 113 else None


def compare(title: str, have: Values, wanted: Values, _mark: object) -> Iterator[Difference]:
    """The lines that are in the kernel but not wanted, then the lines that are missing."""
    yield from (Difference(f"{title}: qdiscs", "-", next(each.lines())) for each in have if each not in wanted)
    yield from (Difference(f"{title}: qdiscs", "+", next(each.lines())) for each in wanted if each not in have)


KIND = Kind(Qdisc, parse, _mark, compare, lambda each: (("qdiscs", line) for line in each.lines()), ("qdisc ",))


def _tc(netns_path: object, *words: str) -> str:
    with netns.inside(str(netns_path)):
        return subprocess.run(["tc", *words], check=True, capture_output=True, text=True).stdout


def _read(netns_path: object, mark: str) -> tuple[Qdisc, ...]:
    found = json.loads(_tc(netns_path, "-j", "qdisc", "show"))
    return tuple(Qdisc(each["dev"], each["options"]["limit"]) for each in found if each["handle"] == mark)


def _apply(netns_path: object, mark: str, wanted: Sequence[Qdisc]) -> tuple[str, ...]:
    have = _read(netns_path, mark)
    for each in have:
        if each.device not in {other.device for other in wanted}:
            _tc(netns_path, "qdisc", "del", "dev", each.device, "root")
    steps = [each for each in wanted if each not in have]
    for each in steps:
        words = ("dev", each.device, "root", "handle", mark, "pfifo", "limit", str(each.limit))
        _tc(netns_path, "qdisc", "replace", *words)
    return tuple(str(each) for each in steps)


def _watch(_netns_path: object, _mark: str) -> Watch:
    raise NotImplementedError("routing compares further kinds every 30 s")


KERNEL_KIND = KernelKind(_read, _apply, _watch)

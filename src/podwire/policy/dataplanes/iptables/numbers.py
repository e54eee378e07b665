"""Numbers for chains, which fit into a packet's mark, and the branch chains that go from a number to its chain (pure).

iptables has no map from a value to a chain, but an ipset can give a packet a mark, and rules can compare a mark. So a
number is found in a search tree: a chain compares two bits of the number, and its target chains compare the next two;
up to four numbers are compared whole. Sixteen numbers cost 4 comparisons on average, 250 cost 9, 1,000 cost 11, at
some 10 ns each. A packet with a number that has no chain is dropped.

A chain keeps its number as long as the chain exists, also after a restart: ``known`` has the numbers that the kernel
holds. A number that was given back still selects its chain until :meth:`Numbers.settle`, because elements of sets may
still give that number to packets.
"""

import errno
import heapq
from collections.abc import Mapping

import msgspec

from podwire.errors import KernelError
from podwire.state.iptables import Rules

_FEW = 4


class MarkBits(msgspec.Struct, frozen=True, gc=False):
    """The bits of the packet mark that podwire uses, as numbers."""

    mask: int

    @property
    def last(self) -> int:
        """The largest number that fits into the mask."""
        return self.mask >> self._shift

    @property
    def _shift(self) -> int:
        return (self.mask & -self.mask).bit_length() - 1

    def of(self, number: int) -> tuple[int, int]:
        """The mark for a number, and the mask."""
        return number << self._shift, self.mask

    def within(self, number: int, below: int = 0) -> str:
        """The match of a number; the lowest ``below`` bits are ignored."""
        mask = self.mask >> self._shift + below << self._shift + below
        value = number >> below << self._shift + below
        return f"0x{value:x}" if mask == 0xFFFFFFFF else f"0x{value:x}/0x{mask:x}"

    def either(self, number: int) -> str:
        """The match of 0 or ``number``, which must be a single bit."""
        return f"0x0/0x{self.mask & ~self.of(number)[0]:x}"

    def sets(self, number: int) -> str:
        """The target that gives a packet a number."""
        value, mask = self.of(number)
        return f"-j MARK --set-xmark 0x{value:x}/0x{mask:x}"


class Numbers:
    """Numbers from ``first`` to ``last``; ``known`` are the numbers of the chains that the kernel holds."""

    def __init__(self, first: int, last: int, known: Mapping[str, int]) -> None:
        self._last = last
        self._next = max(first, max(known.values(), default=first - 1) + 1)
        self._free = sorted(set(range(first, self._next)) - set(known.values()))
        self._not_claimed = dict(known)
        self._new: set[str] = set()
        self.used: dict[str, int] = {}

    @property
    def leading(self) -> dict[str, int]:
        """The numbers in use, and those given back since the last :meth:`settle`."""
        return {**self._not_claimed, **self.used}

    def take(self, name: str) -> int:
        """The number of a name; a new name gets a free number.

        Raises: KernelError when no number is free.
        """
        if name not in self.used:
            if name in self._not_claimed:
                self.used[name] = self._not_claimed.pop(name)
            else:
                self.used[name] = self._fresh()
                self._new.add(name)
        return self.used[name]

    def _fresh(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        if self._next > self._last:
            detail = f"policies need more than {self._last} marks on this node; give policy.marks more bits"
            raise KernelError("number", "a chain", errno.ENOSPC, detail)
        self._next += 1
        return self._next - 1

    def give_back(self, name: str) -> None:
        """Gives the number of a name back; elements of sets may still use it until :meth:`settle`.

        A number that was taken since the last :meth:`settle` is free at once: the kernel never had its chain.
        """
        if name in self._new:
            self._new.remove(name)
            heapq.heappush(self._free, self.used.pop(name))
        else:
            self._not_claimed[name] = self.used.pop(name)

    def settle(self) -> None:
        """Frees the numbers that were given back; to be called when no element of a set uses them any more."""
        for number in self._not_claimed.values():
            heapq.heappush(self._free, number)
        self._not_claimed.clear()
        self._new.clear()


def branches(root: str, numbers: Mapping[str, int], marks: MarkBits) -> dict[str, Rules]:
    """The chains that branch from ``root`` to the chain of each number."""
    chains: dict[str, Rules] = {}
    _branch(root, root, sorted((number, name) for name, number in numbers.items()), marks, chains)
    return chains


def _branch(root: str, chain: str, leaves: list[tuple[int, str]], marks: MarkBits, chains: dict[str, Rules]) -> None:
    if len(leaves) <= _FEW:
        rules_of_leaves = [f"-m mark --mark {marks.within(number)} -g {name}" for number, name in leaves]
        chains[chain] = (*rules_of_leaves, "-j DROP")
        return
    below = ((leaves[0][0] ^ leaves[-1][0]).bit_length() + 1) // 2 * 2 - 2
    groups: dict[int, list[tuple[int, str]]] = {}
    for number, name in leaves:
        groups.setdefault(number >> below, []).append((number, name))
    rules = []
    for group, members in groups.items():
        name = f"{root}-{below}-{group:x}"
        rules.append(f"-m mark --mark {marks.within(group << below, below)} -g {name}")
        _branch(root, name, members, marks, chains)
    chains[chain] = (*rules, "-j DROP")


def known_numbers(chains: Mapping[str, Rules], root: str, prefix: str, marks: MarkBits) -> dict[str, int]:
    """The names and numbers in existing chains of :func:`branches`; ``prefix`` begins the names.

    Empty when two names have the same number, or when the chains were written for other bits of the mark.
    """
    numbers: dict[str, int] = {}
    for chain, rules in chains.items():
        if chain != root and not chain.startswith(f"{root}-"):
            continue
        for rule in rules:
            tokens = rule.split()
            branch = tokens[-1].startswith(f"{root}-") and "-" in tokens[-1].removeprefix(f"{root}-")
            if (
                tokens[:3] == ["-m", "mark", "--mark"]
                and tokens[-2] == "-g"
                and tokens[-1].startswith(prefix)
                and not branch
            ):
                value = int(tokens[3].partition("/")[0], 16)
                number = value // marks.of(1)[0]
                if tokens[3] != marks.within(number):
                    return {}
                numbers[tokens[-1]] = number
    return numbers if len(set(numbers.values())) == len(numbers) else {}

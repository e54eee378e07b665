"""The chains and sets that a data plane holds of one family, and which of them changed since the last time (pure).

Whoever keeps them says what comes, becomes another one and goes; a piece is kept as it was when it was touched first.
So what is to be committed is the difference of what was touched, before and after, at the cost of what was touched.

Elements that pods stand behind are claimed and released: should two pods have the same one, as while an address goes
from one to the other, it is that of the first by name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from podwire.state import nft
from podwire.state.ipset import IpSet

Chain = TypeVar("Chain")
Set = TypeVar("Set", bound=nft.Set | IpSet)
Key = TypeVar("Key")
Element = TypeVar("Element")


class ContentsExtract(msgspec.Struct, Generic[Chain, Set], frozen=True, gc=False):
    """Some chains, and sets with some of their elements, by their names."""

    chains: dict[str, Chain]
    sets: dict[str, Set]


class KeyedContents(Generic[Chain, Set, Key, Element]):
    """All pieces of one family."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        self.sets: dict[str, Set] = {}
        """Without their elements."""
        self.elements: dict[str, dict[Key, Element]] = {}
        self._claims: dict[tuple[str, Key], dict[str, Element]] = {}
        self._chains_before: dict[str, Chain | None] = {}
        self._sets_before: dict[str, Set | None] = {}
        self._elements_before: dict[str, dict[Key, Element | None]] = {}

    def put(self, name: str, chain: Chain) -> None:
        """A chain comes, or is another one now."""
        self._chains_before.setdefault(name, self.chains.get(name))
        self.chains[name] = chain

    def remove(self, name: str) -> None:
        """A chain goes."""
        self._chains_before.setdefault(name, self.chains[name])
        del self.chains[name]

    def add_set(self, declared: Set) -> None:
        """A set comes, with its elements."""
        self._sets_before.setdefault(declared.name, None)
        self.sets[declared.name] = replace(declared, elements={})
        self.elements[declared.name] = {}
        self.set_all(declared.name, _elements(declared))

    def remove_set(self, name: str) -> None:
        """A set goes."""
        self.set_all(name, dict.fromkeys(self.elements[name]))
        self._sets_before.setdefault(name, self.sets[name])
        del self.sets[name]
        del self.elements[name]

    def set(self, name: str, key: Key, element: Element | None) -> None:
        """An element comes, is another one now, or goes (None)."""
        self.set_all(name, {key: element})

    def set_all(self, name: str, changes: Mapping[Key, Element | None]) -> None:
        """The same for many elements."""
        own, before = self.elements[name], self._elements_before.setdefault(name, {})
        for key, element in changes.items():
            if key not in before:
                before[key] = own.get(key)
            if element is None:
                own.pop(key, None)
            else:
                own[key] = element

    def fill(self, declared: Set) -> None:
        """A set has these elements, and no others."""
        elements = _elements(declared)
        gone = dict.fromkeys(self.elements[declared.name].keys() - elements.keys())
        self.set_all(declared.name, {**gone, **elements})

    def claim(self, pod: str, elements: Mapping[str, Mapping[Key, Element]]) -> None:
        """A pod stands behind elements, by the name of their set."""
        for name, own in elements.items():
            for key, element in own.items():
                claims = self._claims.setdefault((name, key), {})
                claims[pod] = element
                self.set(name, key, claims[min(claims)])

    def release(self, pod: str, elements: Mapping[str, Mapping[Key, Element]]) -> None:
        """It does so no more."""
        for name, own in elements.items():
            for key in own:
                claims = self._claims[name, key]
                del claims[pod]
                self.set(name, key, claims[min(claims)] if claims else None)
                if not claims:
                    del self._claims[name, key]

    def has(self, name: str, key: Key) -> bool:
        """Whether a set has an element."""
        return key in self.elements[name]

    def filled(self) -> Iterator[Set]:
        """The sets with their elements."""
        return (replace(each, elements=self.elements[name]) for name, each in self.sets.items())

    def changes(self) -> tuple[ContentsExtract[Chain, Set], ContentsExtract[Chain, Set]]:
        """What was touched since the last call: as it was, and as it is."""
        before: ContentsExtract[Chain, Set] = ContentsExtract({}, {})
        now: ContentsExtract[Chain, Set] = ContentsExtract({}, {})
        for name, chain in self._chains_before.items():
            if chain is not None:
                before.chains[name] = chain
            if name in self.chains:
                now.chains[name] = self.chains[name]
        for name in self._sets_before.keys() | self._elements_before.keys():
            touched = self._elements_before.get(name, {})
            was = self._sets_before[name] if name in self._sets_before else self.sets[name]
            if was is not None:
                there = {key: element for key, element in touched.items() if element is not None}
                before.sets[name] = replace(was, elements=there)
            if name in self.sets:
                own = self.elements[name]
                now.sets[name] = replace(self.sets[name], elements={key: own[key] for key in touched if key in own})
        self._chains_before, self._sets_before, self._elements_before = {}, {}, {}
        return before, now


def _elements(declared: nft.Set | IpSet) -> Mapping[Any, Any]:
    return declared.elements

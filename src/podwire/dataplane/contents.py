"""The chains and sets that a data plane holds for one family, and which of them changed since the last commit (pure).

Chains and sets are added, replaced and removed by name. Each keeps its value from before its first change, so
:meth:`KeyedContents.changes` returns only what changed, before and after, and costs only that.

Elements that belong to pods are claimed and released. While two pods claim the same element (an address moves from one
pod to another), the element of the pod that is first by name is used.
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
    """A selection of chains, and of sets with a selection of their elements, by name."""

    chains: dict[str, Chain]
    sets: dict[str, Set]


class KeyedContents(Generic[Chain, Set, Key, Element]):
    """All chains, sets and elements of one family."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        self.sets: dict[str, Set] = {}
        """Without their elements."""
        self.elements: dict[str, dict[Key, Element]] = {}
        self._claims: dict[tuple[str, Key], dict[str, Element]] = {}
        self._chains_before: dict[str, Chain | None] = {}
        self._sets_before: dict[str, Set | None] = {}
        self._elements_before: dict[str, dict[Key, Element | None]] = {}

    def put_chain(self, name: str, chain: Chain) -> None:
        """Adds or replaces a chain."""
        self._chains_before.setdefault(name, self.chains.get(name))
        self.chains[name] = chain

    def remove_chain(self, name: str) -> None:
        """Removes a chain."""
        self._chains_before.setdefault(name, self.chains[name])
        del self.chains[name]

    def add_set(self, declared: Set) -> None:
        """Adds a set with its elements."""
        self._sets_before.setdefault(declared.name, None)
        self.sets[declared.name] = replace(declared, elements={})
        self.elements[declared.name] = {}
        self.put_elements(declared.name, _elements(declared))

    def remove_set(self, name: str) -> None:
        """Removes a set."""
        self.put_elements(name, dict.fromkeys(self.elements[name]))
        self._sets_before.setdefault(name, self.sets[name])
        del self.sets[name]
        del self.elements[name]

    def put_element(self, name: str, key: Key, element: Element | None) -> None:
        """Adds, replaces or removes (None) an element."""
        self.put_elements(name, {key: element})

    def put_elements(self, name: str, changes: Mapping[Key, Element | None]) -> None:
        """Adds, replaces or removes (None) many elements."""
        own, before = self.elements[name], self._elements_before.setdefault(name, {})
        for key, element in changes.items():
            if key not in before:
                before[key] = own.get(key)
            if element is None:
                own.pop(key, None)
            else:
                own[key] = element

    def fill_set(self, declared: Set) -> None:
        """Makes a set have exactly these elements."""
        elements = _elements(declared)
        removed = dict.fromkeys(self.elements[declared.name].keys() - elements.keys())
        self.put_elements(declared.name, {**removed, **elements})

    def claim(self, pod: str, elements: Mapping[str, Mapping[Key, Element]]) -> None:
        """A pod claims elements, by the name of their set."""
        for name, own in elements.items():
            for key, element in own.items():
                claims = self._claims.setdefault((name, key), {})
                claims[pod] = element
                self.put_element(name, key, claims[min(claims)])

    def release(self, pod: str, elements: Mapping[str, Mapping[Key, Element]]) -> None:
        """A pod no longer claims elements."""
        for name, own in elements.items():
            for key in own:
                claims = self._claims[name, key]
                del claims[pod]
                self.put_element(name, key, claims[min(claims)] if claims else None)
                if not claims:
                    del self._claims[name, key]

    def has_element(self, name: str, key: Key) -> bool:
        """Whether a set has an element."""
        return key in self.elements[name]

    def filled_sets(self) -> Iterator[Set]:
        """The sets with their elements."""
        return (replace(declared, elements=self.elements[name]) for name, declared in self.sets.items())

    def changes(self) -> tuple[ContentsExtract[Chain, Set], ContentsExtract[Chain, Set]]:
        """The chains and elements that changed since the last call: before, and now."""
        before: ContentsExtract[Chain, Set] = ContentsExtract({}, {})
        now: ContentsExtract[Chain, Set] = ContentsExtract({}, {})
        for name, chain in self._chains_before.items():
            if chain is not None:
                before.chains[name] = chain
            if name in self.chains:
                now.chains[name] = self.chains[name]
        for name in self._sets_before.keys() | self._elements_before.keys():
            touched = self._elements_before.get(name, {})
            old_set = self._sets_before[name] if name in self._sets_before else self.sets[name]
            if old_set is not None:
                old_elements = {key: element for key, element in touched.items() if element is not None}
                before.sets[name] = replace(old_set, elements=old_elements)
            if name in self.sets:
                own = self.elements[name]
                now.sets[name] = replace(self.sets[name], elements={key: own[key] for key in touched if key in own})
        self._chains_before, self._sets_before, self._elements_before = {}, {}, {}
        return before, now


def _elements(declared: nft.Set | IpSet) -> Mapping[Any, Any]:
    return declared.elements

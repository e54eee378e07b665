"""Which of many selectors match a pod, at a cost that follows the change (pure).

Policies name the same pods again and again, and pods share labels: each selector is kept once, under a number, and what
matches is remembered for each set of labels. Labels that no selector mentions (``statefulset.kubernetes.io/pod-name``,
for one, of which each pod has its own) are left out of these sets, so that replicas have the same. A new selector is
tried on the known sets when they are asked for next, a new pod with a known set costs a look-up.

A set that is not known is tried on the selectors that could match it: each stands at one place, a label (or a label's
name) without which it matches nothing, of those that it has the one where fewest others stand. Numbers are never given
twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

import msgspec

from podwire.model.selector import LabelSelector

_FEW = 16
"""New selectors up to which all are tried; and values of a label up to which a selector stands at each."""
_EVERYWHERE, _NAMESPACES = "", "/"
"""Where selectors stand that are not for the pods of one namespace: at labels of pods, or of namespaces."""

Place = tuple[str, str, str | None]
"""Namespace (or one of the words above), name of a label, its value (None: any)."""


class PodSelector(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Pods by their labels, in one namespace or in those with some labels."""

    namespace: str = ""
    """The only namespace; empty: those of ``namespaces``."""
    namespaces: LabelSelector = LabelSelector()
    pods: LabelSelector = LabelSelector()

    def matches(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels in a namespace with those is selected."""
        if self.namespace:
            return self.namespace == namespace and self.pods.matches(dict(labels))
        return self.namespaces.matches(dict(namespace_labels)) and self.pods.matches(dict(labels))

    def keys(self) -> set[str]:
        """The names of the pods' labels that it mentions."""
        return {*self.pods.match_labels, *(term.key for term in self.pods.match_expressions)}

    def places(self) -> list[tuple[Place, ...]]:
        """Each is enough: what is at none of its places is not selected."""
        if self.namespace:
            return list(_places(self.namespace, self.pods)) or [((self.namespace, "", None),)]
        found = [*_places(_EVERYWHERE, self.pods), *_places(_NAMESPACES, self.namespaces)]
        return found or [((_EVERYWHERE, "", None),)]


def _places(scope: str, selector: LabelSelector) -> Iterator[tuple[Place, ...]]:
    for key, value in selector.match_labels.items():
        yield ((scope, key, value),)
    for term in selector.match_expressions:
        if term.operator == "In" and len(term.values) <= _FEW:
            yield tuple((scope, key, value) for key, value in {(term.key, value) for value in term.values})
        elif term.operator in ("In", "Exists"):
            yield ((scope, term.key, None),)


class Match:
    """What matches one set of labels in one namespace."""

    __slots__ = ("labels", "namespace", "numbers", "seen")

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.numbers: frozenset[int] = frozenset()
        self.seen = 0


class SelectorIndex:
    """The selectors of all policies."""

    def __init__(self, labels_of: Callable[[str], Mapping[str, str]]) -> None:
        """``labels_of`` gives the labels of a namespace; see :meth:`forget` for when they change."""
        self._labels_of = labels_of
        self._numbers: dict[bytes, int] = {}
        self._uses: Counter[int] = Counter()
        self._selectors: dict[int, tuple[bytes, PodSelector]] = {}
        self._next = 1
        self._matches: dict[str, dict[tuple[tuple[str, str], ...], Match]] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._at: dict[Place, set[int]] = {}
        self._keys: Counter[str] = Counter()
        self.version = 0
        """Becomes another when sets of labels that were the same may differ now: no :class:`Match` is good any more."""

    def take(self, selector: PodSelector) -> int:
        """The number of a selector, which is held until :meth:`release`."""
        text = msgspec.json.encode(selector, order="deterministic")
        number = self._numbers.get(text)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[text] = number
            self._selectors[number] = (text, selector)
            self._put(number, selector)
        self._uses[number] += 1
        return number

    def _put(self, number: int, selector: PodSelector) -> None:
        """Gives a selector its place, and looks at the labels that it mentions from now on."""
        chosen = self._places[number] = min(selector.places(), key=self._crowd)
        for place in chosen:
            self._at.setdefault(place, set()).add(number)
        keys = selector.keys()
        if not keys <= self._keys.keys():
            self._keys = +self._keys
            self._matches.clear()
            self.version += 1
        self._keys.update(keys)

    def _crowd(self, places: tuple[Place, ...]) -> tuple[bool, int]:
        """How many selectors stand there; a label's name alone is what many pods have."""
        return any(value is None for _, _, value in places), sum(len(self._at.get(place, ())) for place in places)

    def release(self, number: int) -> None:
        """Gives a number back; what nobody holds any more matches nothing."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            text, selector = self._selectors.pop(number)
            del self._numbers[text]
            self._keys.subtract(selector.keys())
            for place in self._places.pop(number):
                self._at[place].discard(number)
                if not self._at[place]:
                    del self._at[place]

    def forget(self, namespace: str) -> None:
        """Has the pods of a namespace matched anew, because its labels changed."""
        self._matches.pop(namespace, None)

    def remembered(self, namespace: str) -> int:
        """How many sets of labels are remembered for a namespace; :meth:`forget` makes it none."""
        return len(self._matches.get(namespace, ()))

    def matching(self, namespace: str, labels: Mapping[str, str]) -> frozenset[int]:
        """The numbers of all selectors that match a pod; some that were released may be among them."""
        return self.numbers(self.match(namespace, labels))

    def match(self, namespace: str, labels: Mapping[str, str]) -> Match:
        """What is remembered of these labels; good until :meth:`forget` for the namespace, and for one version."""
        known = self._matches.setdefault(namespace, {})
        keys = self._keys
        key = tuple(sorted(label for label in labels.items() if label[0] in keys))
        found = known.get(key)
        if found is None:
            found = known[key] = Match(namespace, dict(key))
        return found

    def numbers(self, match: Match) -> frozenset[int]:
        """The numbers of all selectors that match, as :meth:`matching` gives them."""
        if match.seen < self._next - 1:
            self._extend(match)
        return match.numbers

    def _extend(self, match: Match) -> None:
        own = self._labels_of(match.namespace)
        new = self._newest(match.seen) if self._next - 1 - match.seen <= _FEW else self._candidates(match, own)
        found = {n for n in new if n > match.seen and self._selectors[n][1].matches(match.namespace, own, match.labels)}
        match.numbers = frozenset(number for number in match.numbers if number in self._selectors) | found
        match.seen = self._next - 1

    def _newest(self, seen: int) -> Iterator[int]:
        return takewhile(lambda number: number > seen, reversed(self._selectors))

    def _candidates(self, match: Match, own: Mapping[str, str]) -> Iterator[int]:
        """All selectors that could match."""
        at = self._at.get
        for scope, labels in ((match.namespace, match.labels), (_EVERYWHERE, match.labels), (_NAMESPACES, own)):
            yield from at((scope, "", None), ())
            for key, value in labels.items():
                yield from at((scope, key, value), ())
                yield from at((scope, key, None), ())

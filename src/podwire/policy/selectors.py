"""Which of many selectors match a pod, at a cost that follows the change (pure).

Many policies select the same pods, and pods share labels. So each selector is stored once, under a number, and the
matching selectors are cached for each set of labels. Labels that no selector mentions (such as
``statefulset.kubernetes.io/pod-name``, which differs for each pod) are left out of these sets, so that replicas share
one set. A new selector is tested on a cached set when the set is looked up next; a new pod with a cached set costs one
look-up.

A new set of labels is tested only on the selectors that could match. Each selector is indexed under one place: a label,
or the name of a label, that a pod must have to match. If a selector has several places, it is indexed under the one
with the fewest selectors. Numbers are never reused.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

import msgspec

from podwire.model.selector import LabelSelector

_FEW = 16
"""Up to this number, new selectors are all tested, and a selector is indexed under each value of a label."""
_EVERYWHERE, _NAMESPACES = "", "/"
"""The scopes of selectors that are not limited to one namespace: labels of pods, or labels of namespaces."""

Place = tuple[str, str, str | None]
"""Namespace (or one of the scopes above), name of a label, its value (None: any)."""


class PodSelector(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Selects pods by their labels, in one namespace or in the namespaces with certain labels."""

    namespace: str = ""
    """The only namespace; empty: the namespaces that ``namespaces`` selects."""
    namespaces: LabelSelector = LabelSelector()
    pods: LabelSelector = LabelSelector()

    def matches(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Whether the selector matches a pod with ``labels`` in a namespace with ``namespace_labels``."""
        return self.in_namespace(namespace, namespace_labels) and self.pods.matches(dict(labels))

    def in_namespace(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the selector can match pods of a namespace with these labels."""
        if self.namespace:
            return self.namespace == namespace
        return self.namespaces.matches(dict(namespace_labels))

    def keys(self) -> set[str]:
        """The names of the pod labels that the selector mentions."""
        return {*self.pods.match_labels, *(term.key for term in self.pods.match_expressions)}

    def index_groups(self) -> list[tuple[Place, ...]]:
        """Alternative groups of places for the index: a pod at no place of a group is not selected."""
        if self.namespace:
            return list(_index_groups(self.namespace, self.pods)) or [((self.namespace, "", None),)]
        groups = [*_index_groups(_EVERYWHERE, self.pods), *_index_groups(_NAMESPACES, self.namespaces)]
        return groups or [((_EVERYWHERE, "", None),)]


def _index_groups(scope: str, selector: LabelSelector) -> Iterator[tuple[Place, ...]]:
    for key, value in selector.match_labels.items():
        yield ((scope, key, value),)
    for term in selector.match_expressions:
        if term.operator == "In" and len(term.values) <= _FEW:
            yield tuple((scope, key, value) for key, value in {(term.key, value) for value in term.values})
        elif term.operator in ("In", "Exists"):
            yield ((scope, term.key, None),)


class SelectorMatches:
    """The selectors that match one set of labels in one namespace; ``last_tested`` is the newest selector tested.

    ``released`` is how many selectors were deleted when :attr:`numbers` was last rid of these.
    """

    __slots__ = ("labels", "last_tested", "namespace", "numbers", "released")

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.numbers: frozenset[int] = frozenset()
        self.last_tested = 0
        self.released = 0


class SelectorIndex:
    """The selectors of all policies."""

    def __init__(self, labels_of: Callable[[str], Mapping[str, str]]) -> None:
        """``labels_of`` gives the labels of a namespace; see :meth:`forget` for when they change."""
        self.labels_of = labels_of
        self._numbers: dict[bytes, int] = {}
        self._uses: Counter[int] = Counter()
        self._selectors: dict[int, tuple[bytes, PodSelector]] = {}
        self._next = 1
        self._released = 0
        self._matches: dict[str, dict[tuple[tuple[str, str], ...], SelectorMatches]] = {}
        self._entry_of: dict[int, tuple[Place, ...]] = {}
        self._at: dict[Place, set[int]] = {}
        self._keys: Counter[str] = Counter()
        self.version = 0
        """Increases when sets of labels that were equal may differ now: all earlier :class:`SelectorMatches` are
        invalid then.
        """

    def take(self, selector: PodSelector) -> int:
        """The number of a selector; the selector is kept until :meth:`release` is called as often."""
        text = msgspec.json.encode(selector, order="deterministic")
        number = self._numbers.get(text)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[text] = number
            self._selectors[number] = (text, selector)
            self._put(number, selector)
        self._uses[number] += 1
        return number

    def text(self, number: int) -> str:
        """The JSON form of a selector."""
        return self._selectors[number][0].decode()

    def selector(self, number: int) -> PodSelector | None:
        """The selector with a number; None: it was released."""
        entry = self._selectors.get(number)
        return entry[1] if entry is not None else None

    def _put(self, number: int, selector: PodSelector) -> None:
        """Indexes a selector; from now on the sets of labels include the labels that the selector mentions."""
        chosen = self._entry_of[number] = min(selector.index_groups(), key=self._index_cost)
        for place in chosen:
            self._at.setdefault(place, set()).add(number)
        keys = selector.keys()
        if not keys <= self._keys.keys():
            self._keys = +self._keys
            self._matches.clear()
            self.version += 1
        self._keys.update(keys)

    def _index_cost(self, group: tuple[Place, ...]) -> tuple[bool, int]:
        """The sort key that prefers exact values to any value, and then places with fewer selectors."""
        return any(value is None for _, _, value in group), sum(len(self._at.get(place, ())) for place in group)

    def release(self, number: int) -> None:
        """Releases one use of a number; after the last use, the selector is deleted."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            self._released += 1
            text, selector = self._selectors.pop(number)
            del self._numbers[text]
            self._keys.subtract(selector.keys())
            for place in self._entry_of.pop(number):
                self._at[place].discard(number)
                if not self._at[place]:
                    del self._at[place]

    def forget(self, namespace: str) -> None:
        """Drops the cached matches of a namespace, because its labels changed."""
        self._matches.pop(namespace, None)

    def remembered(self, namespace: str) -> int:
        """How many sets of labels are cached for a namespace; 0 after :meth:`forget`."""
        return len(self._matches.get(namespace, ()))

    def matching(self, namespace: str, labels: Mapping[str, str]) -> frozenset[int]:
        """The numbers of all selectors that match a pod; released selectors may be among them."""
        return self.numbers(self.match(namespace, labels))

    def match(self, namespace: str, labels: Mapping[str, str]) -> SelectorMatches:
        """The cache entry of these labels; valid until :meth:`forget` for the namespace or a new :attr:`version`."""
        cached = self._matches.setdefault(namespace, {})
        keys = self._keys
        key = tuple(sorted(label for label in labels.items() if label[0] in keys))
        matches = cached.get(key)
        if matches is None:
            matches = cached[key] = SelectorMatches(namespace, dict(key))
        return matches

    def numbers(self, match: SelectorMatches) -> frozenset[int]:
        """The numbers of all selectors that match, as :meth:`matching` gives them."""
        if match.last_tested < self._next - 1:
            self._extend(match)
        return match.numbers

    def _extend(self, match: SelectorMatches) -> None:
        own = self.labels_of(match.namespace)
        new = (
            self._newest(match.last_tested)
            if self._next - 1 - match.last_tested <= _FEW
            else self._candidates(match, own)
        )
        matching = {
            n
            for n in new
            if n > match.last_tested and self._selectors[n][1].matches(match.namespace, own, match.labels)
        }
        if matching and match.released != self._released:
            match.numbers = frozenset(number for number in match.numbers if number in self._selectors)
            match.released = self._released
        if matching:
            match.numbers |= matching
        match.last_tested = self._next - 1

    def _newest(self, newest_known: int) -> Iterator[int]:
        return takewhile(lambda number: number > newest_known, reversed(self._selectors))

    def _candidates(self, match: SelectorMatches, own: Mapping[str, str]) -> Iterator[int]:
        """The numbers of all selectors that could match."""
        at = self._at.get
        for scope, labels in ((match.namespace, match.labels), (_EVERYWHERE, match.labels), (_NAMESPACES, own)):
            yield from at((scope, "", None), ())
            for key, value in labels.items():
                yield from at((scope, key, value), ())
                yield from at((scope, key, None), ())

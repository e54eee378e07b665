"""Which of many selectors match a pod, at a cost that follows the change (pure).

Policies name the same pods again and again, and pods share labels: each selector is kept once, under a number, and what
matches is remembered for each set of labels. A new selector is tried on the known sets of labels when they are asked
for next, a new pod with known labels costs a look-up. Numbers are never given twice.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from podwire.model.selector import LabelSelector


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

    def take(self, selector: PodSelector) -> int:
        """The number of a selector, which is held until :meth:`release`."""
        text = msgspec.json.encode(selector, order="deterministic")
        number = self._numbers.get(text)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[text] = number
            self._selectors[number] = (text, selector)
        self._uses[number] += 1
        return number

    def release(self, number: int) -> None:
        """Gives a number back; what nobody holds any more matches nothing."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            text, _ = self._selectors.pop(number)
            del self._numbers[text]

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
        """What is remembered of these labels; good until :meth:`forget` for the namespace."""
        known = self._matches.setdefault(namespace, {})
        key = tuple(sorted(labels.items()))
        found = known.get(key)
        if found is None:
            found = known[key] = Match(namespace, dict(labels))
        return found

    def numbers(self, match: Match) -> frozenset[int]:
        """The numbers of all selectors that match, as :meth:`matching` gives them."""
        if match.seen < self._next - 1:
            self._extend(match)
        return match.numbers

    def _extend(self, match: Match) -> None:
        own = self._labels_of(match.namespace)
        found = set()
        for number in reversed(self._selectors):
            if number <= match.seen:
                break
            if self._selectors[number][1].matches(match.namespace, own, match.labels):
                found.add(number)
        match.numbers = frozenset(number for number in match.numbers if number in self._selectors) | found
        match.seen = self._next - 1

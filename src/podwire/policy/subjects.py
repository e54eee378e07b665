"""The policies by the pods that they select: policies with equal selectors have one subject (pure)."""

from collections import Counter
from collections.abc import Iterable, Iterator

from podwire.policy.compiled import CompiledPolicy
from podwire.policy.rules import DIRECTIONS

SubjectEffects = tuple[tuple[str, ...], tuple[frozenset[str], ...], bool]
"""The directions with policies, their named ports by direction, and whether the policies are cluster policies."""


class Subject:
    """The policies with one selector."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The selector in its JSON form."""
        self.policies: dict[tuple[str, str], CompiledPolicy] = {}
        self._concerned: Counter[str] = Counter()
        self._names: dict[str, Counter[str]] = {direction: Counter() for direction in DIRECTIONS}

    def add(self, key: tuple[str, str], policy: CompiledPolicy, step: int = 1) -> None:
        """Adds a policy; ``step`` -1: removes the policy."""
        if step > 0:
            self.policies[key] = policy
        else:
            del self.policies[key]
        for direction in DIRECTIONS:
            if policy.concerns(direction):
                self._concerned[direction] += step
                for name in policy.names[direction]:
                    self._names[direction][name] += step

    def concerns(self, direction: str) -> bool:
        """Whether a policy applies to the pods in a direction."""
        return self._concerned[direction] > 0

    @property
    def cluster(self) -> bool:
        """Whether the policies are cluster policies; the selector of a NetworkPolicy names one namespace."""
        return next(iter(self.policies.values())).tier != "Namespace"

    def names(self, direction: str) -> Iterator[str]:
        """The named ports of the policies in a direction."""
        return (name for name, count in self._names[direction].items() if count)

    def effects(self) -> SubjectEffects:
        """What the choice of profiles depends on."""
        concerned = tuple(direction for direction in DIRECTIONS if self.concerns(direction))
        return concerned, tuple(frozenset(self.names(direction)) for direction in DIRECTIONS), self.cluster


class Subjects:
    """All subjects, by the number and by the text of their selector."""

    def __init__(self) -> None:
        self._by_number: dict[int, Subject] = {}
        self._by_text: dict[str, Subject] = {}
        self._texts: dict[int, str] = {}
        self._numbers: set[int] = set()
        self._concerned: dict[str, set[int]] = {direction: set() for direction in DIRECTIONS}
        """By direction: the subjects with a policy that applies to their pods."""
        self._with_names: dict[str, set[int]] = {direction: set() for direction in DIRECTIONS}
        """By direction: the subjects with a policy that names ports."""
        self._cluster: set[int] = set()
        """The subjects of cluster policies."""

    def add(self, key: tuple[str, str], policy: CompiledPolicy) -> None:
        """Adds a policy."""
        subject = self._by_number.get(policy.subject)
        if subject is None:
            subject = self._by_number[policy.subject] = self._by_text[policy.selects] = Subject(policy.selects)
            self._texts[policy.subject] = policy.selects
            self._numbers.add(policy.subject)
        subject.add(key, policy)
        self._index(policy.subject, subject)

    def remove(self, key: tuple[str, str], policy: CompiledPolicy) -> None:
        """Removes a policy."""
        subject = self._by_number[policy.subject]
        subject.add(key, policy, -1)
        self._index(policy.subject, subject)
        if not subject.policies:
            del self._by_number[policy.subject], self._by_text[policy.selects], self._texts[policy.subject]
            self._numbers.discard(policy.subject)

    def _index(self, number: int, subject: Subject) -> None:
        """Takes over what the policies of a subject do."""
        for direction in DIRECTIONS:
            _set_present(self._concerned[direction], number, present=subject.concerns(direction))
            _set_present(self._with_names[direction], number, present=any(subject.names(direction)))
        _set_present(self._cluster, number, present=bool(subject.policies) and subject.cluster)

    def effects(self, number: int) -> SubjectEffects | None:
        """What the profiles of a subject's pods depend on; None: no policy has the subject."""
        subject = self._by_number.get(number)
        return subject.effects() if subject is not None else None

    def among(self, selectors: frozenset[int]) -> frozenset[int]:
        """The selectors that are subjects."""
        return selectors & self._numbers

    def concerning(self, direction: str, numbers: frozenset[int]) -> frozenset[int]:
        """Those of some subjects that have a policy which applies to their pods in a direction."""
        return numbers & self._concerned[direction]

    def any_cluster(self, numbers: frozenset[int]) -> bool:
        """Whether cluster policies have one of some subjects."""
        return not numbers.isdisjoint(self._cluster)

    def names(self, direction: str, numbers: frozenset[int]) -> set[str]:
        """The named ports of the policies with some subjects in a direction."""
        return {
            name
            for number in numbers & self._with_names[direction]
            for name in self._by_number[number].names(direction)
        }

    def texts(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The selectors of some subjects in their JSON form, in order."""
        return tuple(sorted(map(self._texts.__getitem__, numbers)))

    def with_text(self, text: str) -> Subject:
        """The subject with a selector in its JSON form."""
        return self._by_text[text]

    def get(self, text: str) -> Subject | None:
        """The subject with a selector in its JSON form; None: no policy has the selector."""
        return self._by_text.get(text)


def _set_present(numbers: set[int], number: int, *, present: bool) -> None:
    if present:
        numbers.add(number)
    else:
        numbers.discard(number)

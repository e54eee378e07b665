"""The policies that come, change and go in the profiles of one change of the cluster (pure).

A profile has the policies of the selectors that select its pods. These policies change when objects change, and when
other selectors select the pods: then the policies of these selectors come or go, whether they changed or not.
"""

from collections.abc import Iterable, Iterator, Mapping

from podwire.policy.compiled import CompiledPolicy
from podwire.policy.profile import PolicyChange
from podwire.policy.rules import DIRECTIONS
from podwire.policy.subjects import Subjects

PolicyId = tuple[str, str]
"""The kind and the key of a policy."""


class PolicyChanges:
    """The changed policies of one change."""

    def __init__(
        self,
        before: Mapping[PolicyId, CompiledPolicy | None],
        policies: Mapping[PolicyId, CompiledPolicy],
        subjects: Subjects,
    ) -> None:
        """``before`` has the changed policies as they were; ``policies`` and ``subjects`` are the current ones."""
        self._before = before
        self._subjects = subjects
        self._by_subject = _by_subject(before, policies)
        self._gone: dict[str, list[CompiledPolicy]] = {}
        """The changed policies as they were, by their subject."""
        for policy in before.values():
            if policy is not None:
                self._gone.setdefault(policy.selects, []).append(policy)

    def __bool__(self) -> bool:
        return bool(self._by_subject)

    def between(self, direction: str, before: tuple[str, ...], after: tuple[str, ...]) -> list[PolicyChange]:
        """The changes in a profile; ``before`` and ``after`` are the selectors of its pods.

        The changes of one policy that moved from one selector to another are one change.
        """
        return _joined(self._between(direction, before, after))

    def _between(self, direction: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[PolicyChange]:
        new = frozenset(after)
        old = new if before is after else frozenset(before)
        for text in sorted(text for changed_direction, text in self._by_subject if changed_direction == direction):
            if text in old and text in new:
                yield from self._by_subject[direction, text]
        for text in sorted(old - new):
            for policy in (*self._gone.get(text, ()), *self._unchanged(text)):
                if policy.concerns(direction):
                    yield policy, None
        for text in sorted(new - old):
            for policy in self._subjects.with_text(text).policies.values():
                if policy.concerns(direction):
                    yield None, policy

    def _unchanged(self, text: str) -> Iterator[CompiledPolicy]:
        """The current policies with a selector that were there before."""
        subject = self._subjects.get(text)
        for key, policy in subject.policies.items() if subject is not None else ():
            if key not in self._before:
                yield policy


def _by_subject(
    before_change: Mapping[PolicyId, CompiledPolicy | None], policies: Mapping[PolicyId, CompiledPolicy]
) -> dict[tuple[str, str], list[PolicyChange]]:
    """The changed policies by direction and subject; ``before_change`` has the changed ones as they were."""
    changes: dict[tuple[str, str], list[PolicyChange]] = {}
    for key, before in before_change.items():
        after = policies.get(key)
        for direction in DIRECTIONS:
            old = before if before is not None and before.concerns(direction) else None
            new = after if after is not None and after.concerns(direction) else None
            if old is not None and new is not None and old.selects == new.selects:
                if old.in_direction(direction) != new.in_direction(direction):
                    changes.setdefault((direction, old.selects), []).append((old, new))
                continue
            if old is not None:
                changes.setdefault((direction, old.selects), []).append((old, None))
            if new is not None:
                changes.setdefault((direction, new.selects), []).append((None, new))
    return changes


def _joined(changes: Iterable[PolicyChange]) -> list[PolicyChange]:
    """The changes, those of one policy that moved from one subject to another as one."""
    joined: dict[str, PolicyChange] = {}
    for before, after in changes:
        policy = before or after
        assert policy is not None, "a change has a policy before or after"
        other_before, other_after = joined.get(policy.key, (None, None))
        joined[policy.key] = (before or other_before, after or other_after)
    return list(joined.values())

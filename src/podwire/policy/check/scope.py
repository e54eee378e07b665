"""The terms of a selector, in a form that can be compared with other selectors (pure)."""

import msgspec

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.selectors import PodSelector

NAME_LABEL = "kubernetes.io/metadata.name"
"""The label that every namespace has: its name."""

Term = tuple[str, str, frozenset[str]]
Terms = frozenset[Term]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a selector of pods."""

    namespace: str = ""
    """The only namespace; empty: the namespaces that ``namespaces`` selects."""
    namespaces: Terms = frozenset()
    pods: Terms = frozenset()
    named: str = ""
    """The only namespace, also when it is selected by its name label."""

    def within(self, other: "Scope") -> bool:
        """Whether all pods of this selector are pods of the other."""
        if not other.pods <= self.pods:
            return False
        if not other.namespace and not other.namespaces:
            return True
        if self.named and self.named == other.named:
            return True
        if self.namespace or other.namespace:
            return False
        return other.namespaces <= self.namespaces


def scope(selector: PodSelector) -> Scope:
    """The scope of a selector."""
    named = selector.namespaces.match_labels
    alone = len(named) == 1 and not selector.namespaces.match_expressions
    return Scope(
        namespace=selector.namespace,
        namespaces=terms(selector.namespaces),
        pods=terms(selector.pods),
        named=selector.namespace or (named.get(NAME_LABEL, "") if alone else ""),
    )


def terms(selector: LabelSelector) -> Terms:
    """The terms of a selector; a selector with a part of these terms matches at least the same objects."""
    return frozenset(_term(requirement) for requirement in selector.requirements().requirements)


def _term(requirement: Requirement) -> Term:
    return requirement.key, requirement.operator, frozenset(requirement.values)

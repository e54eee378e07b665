"""Label selectors: the object form, the query-string form, and matching.

Sources: Kubernetes API conventions, "Label selectors"; ``k8s.io/apimachinery/pkg/labels``. The object form
(`matchLabels`, `matchExpressions`) and the string form (``a=b,c!=d,e in (f,g),h,!i``) parse to the same
:class:`Selector`. Matching costs one dictionary look-up per requirement.
"""

import re

from podwire.errors import ConfigError
from podwire.model.meta import Fact


class Requirement(Fact, frozen=True):
    """One term; operator is In, NotIn, Exists, DoesNotExist, Gt or Lt (the last two: node affinity only)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether a label set satisfies the term; NotIn is satisfied by an absent key."""
        label = labels.get(self.key)
        match self.operator:
            case "In":
                return label is not None and label in self.values
            case "NotIn":
                return label is None or label not in self.values
            case "Exists":
                return label is not None
            case "DoesNotExist":
                return label is None
            case "Gt" | "Lt":
                return _compare(label, self.operator, self.values)
            case _:
                return False

    def __str__(self) -> str:
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "NotIn" if len(self.values) == 1:
                return f"{self.key}!={self.values[0]}"
            case _:
                return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"


def _compare(label: str | None, operator: str, values: tuple[str, ...]) -> bool:
    try:
        left, right = int(label or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


class LabelSelector(Fact, frozen=True):
    """A selector in the object form; empty selects everything, None (absent) selects nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def requirements(self) -> "Selector":
        """The same selector as a flat list of terms, labels first in key order."""
        terms = [Requirement(key=k, operator="In", values=(v,)) for k, v in sorted(self.match_labels.items())]
        return Selector(requirements=tuple(terms) + self.match_expressions)

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether a label set satisfies every term."""
        label = labels.get
        for key, value in self.match_labels.items():
            if label(key) != value:
                return False
        return all(term.matches(labels) for term in self.match_expressions)


class Selector(Fact, frozen=True):
    """A conjunction of terms; no term selects everything. ``str()`` is the query-string form."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether a label set satisfies every term."""
        return all(term.matches(labels) for term in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(term) for term in self.requirements)


_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET_TERM = re.compile(rf"^(?P<key>{_KEY})\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL_TERM = re.compile(rf"^(?P<key>{_KEY})\s*(?P<op>==|!=|=)\s*(?P<value>[-A-Za-z0-9_.]*)$")
_EXISTS_TERM = re.compile(rf"^(?P<not>!?)\s*(?P<key>{_KEY})$")


def selector_text(selector: LabelSelector | None) -> str:
    """The selector as options of a request spell it; empty for one that selects everything."""
    if selector is None:
        return ""
    terms = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for term in selector.match_expressions:
        values = f"({','.join(sorted(term.values))})"
        spelled = {"Exists": term.key, "DoesNotExist": f"!{term.key}", "In": f"{term.key} in {values}"}
        terms.append(spelled.get(term.operator, f"{term.key} notin {values}"))
    return ",".join(terms)


def parse_selector(text: str) -> Selector:
    """The selector of a ``labelSelector`` query parameter.

    Raises: ConfigError with the term that does not parse.
    """
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", text)]
    return Selector(requirements=tuple(_parse_term(term, text) for term in terms if term))


def _parse_term(term: str, text: str) -> Requirement:
    if match := _SET_TERM.match(term):
        values = tuple(sorted(value.strip() for value in match["values"].split(",")))
        return Requirement(key=match["key"], operator="In" if match["op"] == "in" else "NotIn", values=values)
    if match := _EQUAL_TERM.match(term):
        operator = "NotIn" if match["op"] == "!=" else "In"
        return Requirement(key=match["key"], operator=operator, values=(match["value"],))
    if match := _EXISTS_TERM.match(term):
        return Requirement(key=match["key"], operator="DoesNotExist" if match["not"] else "Exists")
    raise ConfigError(
        "labelSelector",
        "",
        f"cannot parse {term!r} in {text!r}: expected key, !key, key=value, "
        "key!=value, key in (a,b) or key notin (a,b)",
    )


def from_mapping(labels: dict[str, str]) -> Selector:
    """The selector of a plain map, as in ``Service.spec.selector``."""
    return LabelSelector(match_labels=labels).requirements()


def field_terms(text: str) -> tuple[tuple[str, str, bool], ...]:
    """The terms of a ``fieldSelector`` as (path, value, negated).

    Raises: ConfigError with the term that does not parse.
    """
    terms: list[tuple[str, str, bool]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        for mark in ("!=", "==", "="):
            path, match, value = term.partition(mark)
            if match:
                terms.append((path.strip(), value.strip(), mark == "!="))
                break
        else:
            raise ConfigError("fieldSelector", "", f"cannot parse {term!r}: expected path=value or path!=value")
    return tuple(terms)

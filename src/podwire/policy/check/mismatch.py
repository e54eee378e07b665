"""Why a selector matches nothing: the term that does not match, and similar labels that exist (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from podwire.model.selector import LabelSelector, Requirement
from podwire.model.wording import count
from podwire.policy.check.phrases import first_names

LabelSet = tuple[Mapping[str, str], int]
"""A set of labels, and the number of objects that have it."""

_ALIKE, _SLIP = 0.5, 0.6
"""The similarity from which a label is named instead, and from which it may be a typing mistake."""


def explain_mismatch(selector: LabelSelector, things: Iterable[LabelSet], noun: str, where: str = "") -> str:
    """Why a selector matches none of the objects, as half a sentence.

    ``noun`` is the word for one object, such as ``pod``; ``where`` follows it, such as `` of namespace shop``.
    """
    label_sets = [(dict(labels), number) for labels, number in things]
    terms = selector.requirements().requirements
    if not label_sets:
        return f"there is no {noun}{where}"
    best: tuple[int, str] | None = None
    for term in terms:
        near = [(labels, n) for labels, n in label_sets if all(t.matches(labels) for t in terms if t is not term)]
        number = sum(n for _, n in near)
        if near and (best is None or number > best[0]):
            rest = ",".join(str(t) for t in terms if t is not term)
            best = number, (f"of those with {rest}, " if rest else "") + _of_term(term, near, label_sets, (noun, where))
    if best is not None:
        return best[1]
    alone = (f"{term} {_number(term, label_sets, noun)}" for term in terms)
    return f"no {noun}{where} matches all terms: " + ", ".join(alone)


def _number(term: Requirement, things: Sequence[LabelSet], noun: str) -> str:
    matched = sum(number for labels, number in things if term.matches(dict(labels)))
    return f"matches {count(matched, noun)}" if matched else f"matches no {noun}"


def _of_term(
    term: Requirement, near: Sequence[LabelSet], everything: Sequence[LabelSet], called: tuple[str, str]
) -> str:
    """Why one term does not match the objects that match all other terms."""
    noun, where = called
    none = f"no {noun}{where}"
    if term.operator in ("NotIn", "DoesNotExist"):
        condition = "" if term.operator == "DoesNotExist" else f" with one of {', '.join(term.values)}"
        return f"{none} is without a label {term.key}{condition}"
    values: Counter[str] = Counter()
    for labels, number in near:
        if term.key in labels:
            values[labels[term.key]] += number
    if not values:
        return f"{none} has a label {term.key}" + _other_key(term, near, everything, noun)
    similar = get_close_matches(term.values[0], list(values), 1, _ALIKE) if term.values else []
    if similar:
        number = values[similar[0]]
        return f"{none} has {term}, {count(number, noun)} {_have(number)} {term.key}={similar[0]}"
    listed = first_names(f"{value or '(empty)'} ({number})" for value, number in values.most_common())
    return f"{none} has {term}; values of {term.key} there are {listed}"


def _other_key(term: Requirement, near: Sequence[LabelSet], everything: Sequence[LabelSet], noun: str) -> str:
    """A label with the wanted value, or a label with a similar name, as text; empty: none."""
    for value in term.values:
        keys = Counter(key for labels, _ in near for key, have in labels.items() if have == value)
        if keys:
            key = keys.most_common(1)[0][0]
            number = sum(n for labels, n in near if labels.get(key) == value)
            return f", {count(number, noun)} {_have(number)} {key}={value}"
    known = {key for labels, _ in everything for key in labels}
    is_similar = get_close_matches(term.key, sorted(known), 1, _ALIKE)
    return f"; there is {is_similar[0]}" if is_similar else ""


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def is_similar(selector: LabelSelector, things: Iterable[LabelSet]) -> bool:
    """Whether a key or value of the selector may be misspelled: an existing key or value is similar."""
    label_sets = [dict(labels) for labels, _ in things]
    for term in selector.requirements().requirements:
        values = sorted({labels[term.key] for labels in label_sets if term.key in labels})
        if any(value not in values and get_close_matches(value, values, 1, _SLIP) for value in term.values):
            return True
        keys = sorted({key for labels in label_sets for key in labels})
        if term.operator == "In" and term.key not in keys and get_close_matches(term.key, keys, 1, 0.75):
            return True
    return False

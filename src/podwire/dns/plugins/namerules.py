"""Rules that replace a name: exact, prefix, suffix, substring or regular expression. Pure.

Names are text in lower case with the final dot. A rule says, beside the new name, how names in the reply change back.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, expression

MATCHES = ("exact", "prefix", "suffix", "substring", "regex")

Rewriter = Callable[[str], str]
"""Changes a name in a reply."""


class NameOutcome(NamedTuple):
    """The new name, and the changes of owner names and of names inside records of the reply."""

    name: str
    owners: tuple[Rewriter, ...] = ()
    values: tuple[Rewriter, ...] = ()


class PatternRewriter(msgspec.Struct, frozen=True):
    """Replaces a name that a regular expression matches; ``{1}`` is its first group."""

    pattern: re.Pattern[str]
    replacement: str

    def __call__(self, name: str) -> str:
        """The new name, or the same one."""
        match = self.pattern.search(name)
        return name if match is None else fill_groups(self.replacement, match)


class NameChange(msgspec.Struct, frozen=True):
    """One rule; ``revert`` changes the names of the reply back by the rule itself."""

    kind: str
    before: str
    after: str
    pattern: re.Pattern[str] | None = None
    revert: bool = False
    owners: tuple[PatternRewriter, ...] = ()
    values: tuple[PatternRewriter, ...] = ()

    def apply(self, name: str) -> NameOutcome | None:
        """The outcome for a name, or None when the rule does not match."""
        changed = self._changed(name)
        if changed is None:
            return None
        if not self.revert:
            return NameOutcome(changed, self.owners, self.values)
        reverse = self._suffix_back() if self.kind == "suffix" else _name_back(changed, name)
        return NameOutcome(changed, (reverse, *self.owners), (reverse, *self.values))

    def _changed(self, name: str) -> str | None:
        match self.kind:
            case "exact":
                return self.after if name == self.before else None
            case "prefix":
                return self.after + name.removeprefix(self.before) if name.startswith(self.before) else None
            case "suffix":
                return name.removesuffix(self.before) + self.after if name.endswith(self.before) else None
            case "substring":
                return name.replace(self.before, self.after) if self.before in name else None
        matched = self.pattern.search(name) if self.pattern is not None else None
        return None if matched is None else fill_groups(self.after, matched)

    def _suffix_back(self) -> Rewriter:
        def reverse(name: str) -> str:
            return name.removesuffix(self.after) + self.before if name.endswith(self.after) else name

        return reverse


def _name_back(changed: str, original: str) -> Rewriter:
    """Replaces the new name, and the end of names below it, by the original one."""

    def reverse(name: str) -> str:
        if name == changed:
            return original
        return name.removesuffix(changed) + original if name.endswith(f".{changed}") else name

    return reverse


def fill_groups(replacement: str, match: re.Match[str]) -> str:
    """``replacement`` with the groups of a match; ``{0}`` is the whole match."""
    text = replacement
    for index, group in enumerate((match[0], *match.groups())):
        text = text.replace(f"{{{index}}}", group or "")
    return text


def read_name_change(directive: Directive, arguments: list[str], *, answers: bool) -> NameChange:
    """The rule in ``[exact|prefix|suffix|substring|regex] FROM TO [answer ...]``.

    Raises: ConfigError with the line.
    """
    kind = "exact"
    if arguments and arguments[0] in MATCHES and len(arguments) > 2:
        kind, *arguments = arguments
    expect(len(arguments) >= 2, directive, "expected what to match and what to put there")
    before, after, *rest = arguments
    expect(answers or not rest, directive, f"expected nothing after {after!r}")
    pattern = None
    after = after.lower()
    if kind == "regex":
        pattern = expression(directive, before)
        _check_groups(directive, pattern, after)
    else:
        before = before.lower()
    if kind in ("exact", "suffix"):
        before, after = (f"{text.removesuffix('.')}." for text in (before, after))
    automatic, owners, values = _read_answers(directive, rest)
    return NameChange(kind, before, after, pattern, automatic or kind == "exact", owners, values)


def _read_answers(
    directive: Directive, rest: list[str]
) -> tuple[bool, tuple[PatternRewriter, ...], tuple[PatternRewriter, ...]]:
    automatic = False
    rewriters: dict[str, list[PatternRewriter]] = {"name": [], "value": []}
    while rest:
        match rest:
            case "answer", "auto", *rest:
                automatic = True
            case "answer", ("name" | "value") as kind, before, after, *rest:
                pattern = expression(directive, before)
                _check_groups(directive, pattern, after)
                rewriters[kind].append(PatternRewriter(pattern, after.lower()))
            case _:
                wrong = "expected answer auto, answer name FROM TO, or answer value FROM TO"
                raise directive.wrong(f"{wrong}, got {' '.join(rest)!r}")
    expect(not (automatic and rewriters["name"]), directive, "expected either answer auto or answer name")
    return automatic, tuple(rewriters["name"]), tuple(rewriters["value"])


def _check_groups(directive: Directive, pattern: re.Pattern[str], replacement: str) -> None:
    used = [int(number) for number in re.findall(r"\{(\d+)\}", replacement)]
    problem = f"{replacement!r} uses a group that {pattern.pattern!r} does not have"
    expect(max(used, default=0) <= pattern.groups, directive, problem)

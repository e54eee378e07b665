"""Numbers in texts for people: ``1 node``, not ``1 nodes``."""

import ast
import re

from tests.unit.house.syntax import MODULES, SRC, tree

_NOUNS = (
    "addresses|annotations|arguments|blocks|cases|changes|checks|connections|containers|contents|definitions|endpoints"
    "|entries|errors|events|files|findings|flows|keys|lines|messages|namespaces|nodes|objects|packets|peers|pods"
    "|policies|ports|processes|ranges|results|routes|rules|seconds|services|sessions|sets|tables|texts|values|warnings"
    "|workloads|zones"
)
_PLURAL = re.compile(rf"(?:,[^}}]*)? (?:{_NOUNS})\b")
_OF = re.compile(r"\b(?:of|than|to|or|first|last|other|further|more) $")
"""What stands before a number that is not counted by the noun alone: ``1 of 1 pods``, ``more than 5 nodes``."""
_NEVER_ONE = {
    "controllers/endpointslice/zones.py": "Kubernetes' own text",
    "embedded/apiserver/conversionwebhooks.py": "Kubernetes' own text",
    "embedded/scheduler/decision.py": "Kubernetes' own text",
    "routing/backends/bgp/filters.py": "said where there is not one",
    "upgrade/plan/coredns.py": "said of 500 nodes and more",
    "upgrade/preflight/checks.py": "said of ranges that several nodes have",
    "why/question.py": "said where several pods match",
}
"""Modules with a number before a plural that is never 1, or whose text is not podwire's."""


def test_one_of_a_kind_is_singular() -> None:
    """A number before a plural is written by ``wording.count``."""
    wrong: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.JoinedStr):
                for text in _counted(node):
                    wrong.setdefault(str(path.relative_to(SRC)), []).append(text)
    assert {module: texts for module, texts in wrong.items() if module not in _NEVER_ONE} == {}
    assert _NEVER_ONE.keys() <= wrong.keys(), "remove from the list what is no exception"


def _counted(text: ast.JoinedStr) -> list[str]:
    """The parts of a text that are a number before a plural."""
    found = []
    for index, (value, behind) in enumerate(zip(text.values, text.values[1:], strict=False)):
        before = text.values[index - 1] if index else None
        head = str(before.value) if isinstance(before, ast.Constant) else ""
        if (
            isinstance(value, ast.FormattedValue)
            and isinstance(behind, ast.Constant)
            and _PLURAL.match(str(behind.value))
            and not _OF.search(head)
            and _is_number(value.value)
        ):
            found.append(f"{ast.unparse(value.value)}{str(behind.value)[:30]}")
    return found


def _is_number(value: ast.expr) -> bool:
    """Whether an expression looks like a number."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("len", "sum")
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.lstrip("_") in ("count", "number", "total", "lost", "broken", "size", "bad", "amount")

"""Conditions, variables and programs of admission policies, without a server."""

from typing import Any

import pytest

from podwire.embedded.apiserver.cel import requests
from podwire.embedded.apiserver.cel.composition import Composition, names_in
from podwire.embedded.apiserver.cel.conditions import ConditionError, all_hold, compile_conditions
from podwire.embedded.apiserver.cel.expressions import CompileError, EvaluationError, compiled
from podwire.embedded.apiserver.cel.policies import annotation, compose

VALUES: dict[str, Any] = {"object": {"n": 2}, "oldObject": None, "request": {}, "namespaceObject": None, "params": None}


def refuse(check: dict[str, Any], verb: str) -> dict[str, Any]:
    raise AssertionError(f"asked for {verb} of {check}")


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("variables.a > variables . b", ("a", "b")),
        ("variables.?c.orValue(1) == 1 && has(variables.a)", ("a", "c")),
        ("'variables.a' == x // variables.b", ()),
        ("object.variables.a", ("a",)),
        ("cel.bind(v, variables, v.b)", ("a", "b", "c")),
        ("object.x", ()),
    ],
)
def test_named_variables_are_found(source: str, want: tuple[str, ...]) -> None:
    assert names_in(source, ("a", "b", "c")) == want


def test_variable_is_evaluated_once_where_it_is_named() -> None:
    asked = []

    def allow(check: dict[str, Any], verb: str) -> dict[str, Any]:
        asked.append(f"{verb} {check['path']}")
        return {"kind": "Decision", "allowed": True, "reason": ""}

    types = requests.variables(params=False)
    composition = Composition()
    composition.add("may", "authorizer.path('/a').check('get').allowed()", types)
    composition.add("other", "authorizer.path('/b').check('get').allowed()", types)
    scope = composition.scope({**VALUES, "authorizer": {"kind": "Authorizer", "user": {}}}, allow)
    for _ in range(2):
        assert scope.evaluate(compiled("variables.may", composition.types(types), "bool")) is True
    assert asked == ["get /a"]


def test_failed_variable_matters_only_where_it_is_used() -> None:
    composition = compose([{"name": "v", "expression": "object.none"}], params=False)
    types = composition.types(requests.variables(params=False))
    scope = composition.scope(VALUES, refuse)
    assert scope.evaluate(compiled("object.n == 2 || variables.v == 1", types, "bool")) is True
    with pytest.raises(EvaluationError, match='composited variable "v" fails to evaluate: no such key: none'):
        scope.evaluate(compiled("object.n == 3 || variables.v == 1", types, "bool"))
    with pytest.raises(EvaluationError, match="no such key: other"):
        scope.evaluate(compiled("object.other == variables.v", types, "bool"))


def test_message_of_a_policy_cannot_ask_the_authorizer() -> None:
    with pytest.raises(CompileError, match="undeclared reference to 'authorizer"):
        compiled(
            "authorizer.path('/').check('get').reason()", requests.variables(params=True, authorizer=False), "string"
        )


def test_annotation_is_a_text_or_null() -> None:
    types = requests.variables(params=False)
    for source in ("'a'", "null", "object.x"):
        assert annotation({"valueExpression": source}, types).source == source
    with pytest.raises(CompileError, match="must evaluate to one of"):
        annotation({"valueExpression": "1"}, types)


@pytest.mark.parametrize(
    ("sources", "want"),
    [(["true", "object.n == 2"], True), (["object.none == 1", "false"], False), ([], True)],
)
def test_conditions_hold_or_not(sources: list[str], want: bool) -> None:  # noqa: FBT001
    conditions = compile_conditions([{"expression": source} for source in sources], params=False)
    assert all_hold(conditions, VALUES, refuse, ignore=False) is want


def test_all_failed_conditions_are_reported() -> None:
    value = [{"expression": f"object.{name} == 1"} for name in ("a", "b")]
    broken = compile_conditions(value, params=True)
    assert all_hold(broken, VALUES, refuse, ignore=True) is False
    with pytest.raises(ConditionError) as caught:
        all_hold(broken, VALUES, refuse, ignore=False)
    assert str(caught.value) == (
        "[expression 'object.a == 1' resulted in error: no such key: a, "
        "expression 'object.b == 1' resulted in error: no such key: b]"
    )
    with pytest.raises(ConditionError, match="compilation failed"):
        compile_conditions([{"expression": "params == null"}], params=False)

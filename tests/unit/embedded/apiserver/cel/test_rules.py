"""Rules of custom resources: what does not compile, what breaks a rule on create and on update."""

from typing import Any

import pytest

from podwire.embedded.apiserver import crd
from podwire.embedded.apiserver.cel import environment, rules
from podwire.embedded.apiserver.cel.expressions import Expression
from podwire.local.addons.ensure import files_of, manifests
from podwire.local.config import ClusterConfig

Json = dict[str, Any]


def schema(spec: Json, **root: Any) -> Json:
    return {"type": "object", "properties": {"spec": spec}, **root}


def spec_of(*json: Json, **properties: Any) -> Json:
    return schema({"type": "object", "properties": properties, rules.RULES: list(json)})


def broken(definition: Json, new: Any, old: Any = None) -> list[str]:
    tree = rules.compile_rules(definition)
    assert tree is not None
    objects = [
        {"metadata": {"name": "w", "labels": {"a": "b"}}, "spec": spec} if spec is not None else None
        for spec in (new, old)
    ]
    assert objects[0] is not None
    return [f"{cause.field}: {cause.message}" for cause in rules.check(tree, objects[0], objects[1])]


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
MOMENT = {"type": "string", "format": "date-time"}
RANGE = {"least": INTEGER, "most": INTEGER}


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        ({"rule": "self.least <= self.most"}, "spec: Invalid value: failed rule: self.least <= self.most"),
        ({"rule": "self.least <= self.most", "message": "wrong"}, "spec: Invalid value: wrong"),
        (
            {"rule": "self.least <= self.most", "messageExpression": "'%d > %d'.format([self.least, self.most])"},
            "spec: Invalid value: 3 > 2",
        ),
        (
            {"rule": "self.least <= self.most", "message": "wrong", "messageExpression": "string(1 / (self.most - 2))"},
            "spec: Invalid value: wrong",
        ),
        (
            {"rule": "self.least <= self.most", "message": "no", "fieldPath": ".most", "reason": "FieldValueForbidden"},
            "spec.most: Forbidden: no",
        ),
        ({"rule": "false", "message": "no", "reason": "FieldValueRequired"}, "spec: Required value: no"),
        (
            {"rule": "self.other > 1"},
            "spec: Invalid value: no such key: other evaluating rule: failed rule: self.other > 1",
        ),
    ],
)
def test_broken_rule_is_reported(rule: Json, want: str) -> None:
    definition = spec_of(rule, **RANGE, other=INTEGER)
    assert broken(definition, {"least": 3, "most": 2}) == [want]


def test_kept_rule_is_silent() -> None:
    definition = spec_of({"rule": "self.least <= self.most"}, {"rule": "has(self.least)"}, **RANGE)
    assert broken(definition, {"least": 1, "most": 2}) == []


def test_root_rule_sees_name_and_no_labels() -> None:
    definition = schema(
        {"type": "object"},
        **{rules.RULES: [{"rule": "self.metadata.name == 'w' && !has(self.apiVersion)"}, {"rule": "false"}]},
    )
    assert broken(definition, {}) == ["<nil>: Invalid value: failed rule: false"]
    (cause,) = rules.problems(schema({}, **{rules.RULES: [{"rule": "has(self.metadata.labels)"}]}), ROOT)
    assert "undefined field 'labels'" in cause.message


def test_scalars_have_types_of_their_schema() -> None:
    definition = spec_of(
        {"rule": "self.at.getFullYear() == 2026 && timestamp(self.at) == self.at && self.wait > duration('1m')"},
        {"rule": "self.times.all(t, t > self.at) && self.times.max().getMonth() == 2"},
        {"rule": "self.data == b'a'"},
        {"rule": "self.ratio == 2.0 && type(self.ratio) == double && self.port == 80 && self.a__dash__b == 'x'"},
        {"rule": "self.__namespace__ == 'n' && has(self.free) && self.labels['a-b'] == 'c'"},
        **{
            "at": MOMENT, "times": {"type": "array", "items": MOMENT}, "wait": {"type": "string", "format": "duration"},
            "data": {"type": "string", "format": "byte"}, "ratio": {"type": "number"},
            "port": {"x-kubernetes-int-or-string": True}, "a-b": STRING, "namespace": STRING,
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "labels": {"type": "object", "additionalProperties": STRING},
        },
    )  # fmt: skip
    spec = {
        "at": "2026-01-01T00:00:00Z", "times": ["2026-03-01", "2026-02-01T00:00:00.5+02:00"], "wait": "1h30m",
        "data": "YQ==", "ratio": 2, "port": 80, "a-b": "x",
        "namespace": "n", "free": {"b": 1}, "labels": {"a-b": "c"},
    }  # fmt: skip
    assert broken(definition, spec) == []


def test_time_has_its_own_type_as_self() -> None:
    later = {"rule": "self > timestamp('2030-01-01T00:00:00Z')", "message": "too early"}
    definition = spec_of(at={"type": "string", "format": "date-time", rules.RULES: [later]})
    assert broken(definition, {"at": "2026-01-01T00:00:00Z"}) == [
        'spec.at: Invalid value: "2026-01-01T00:00:00Z": too early'
    ]


FIXED = {"rule": "self == oldSelf", "message": "is fixed"}
ITEM = {"type": "object", "properties": {"id": STRING, "value": {"type": "integer", rules.RULES: [FIXED]}}}
CORRELATED = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": ITEM}


def test_transition_rule_compares_with_the_old_value() -> None:
    definition = spec_of(value={**INTEGER, rules.RULES: [FIXED]})
    assert broken(definition, {"value": 2}, {"value": 1}) == ["spec.value: Invalid value: 2: is fixed"]
    assert broken(definition, {"value": 2}, {"value": 2}) == []
    assert broken(definition, {"value": 2}, {}) == []
    assert broken(definition, {"value": 2}) == []


def test_items_of_a_map_list_correlate_by_key() -> None:
    definition = spec_of(items=CORRELATED)
    old = {"items": [{"id": "a", "value": 1}, {"id": "b", "value": 2}]}
    assert broken(definition, {"items": [{"id": "b", "value": 2}, {"id": "c", "value": 3}]}, old) == []
    assert broken(definition, {"items": [{"id": "b", "value": 1}]}, old) == [
        "spec.items[0].value: Invalid value: 1: is fixed"
    ]


def test_optional_old_self_covers_creation() -> None:
    rule = {"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 0", "optionalOldSelf": True, "message": "n"}
    definition = spec_of(value={**INTEGER, rules.RULES: [rule]})
    assert broken(definition, {"value": 1}) == ["spec.value: Invalid value: 1: n"]
    assert broken(definition, {"value": 0}) == []
    assert broken(definition, {"value": 2}, {"value": 1}) == []
    assert broken(definition, {"value": 1}, {"value": 2}) == ["spec.value: Invalid value: 1: n"]


def test_unchanged_value_is_not_evaluated_again() -> None:
    definition = spec_of(value={**INTEGER, rules.RULES: [{"rule": "self > 5"}]}, other=INTEGER)
    assert broken(definition, {"value": 1, "other": 2}, {"value": 1}) == []
    assert broken(definition, {"value": 2}, {"value": 1}) == ["spec.value: Invalid value: 2: failed rule: self > 5"]


def test_rules_below_additional_properties_are_evaluated() -> None:
    limited = {"type": "object", "additionalProperties": {**INTEGER, rules.RULES: [{"rule": "self < 3"}]}}
    definition = spec_of(limits=limited)
    assert broken(definition, {"limits": {"a": 1, "b": 4}}) == [
        "spec.limits[b]: Invalid value: 4: failed rule: self < 3"
    ]


ROOT = "spec.versions[0].schema.openAPIV3Schema"
SPEC = f"{ROOT}.properties[spec].{rules.RULES}[0]"


@pytest.mark.parametrize(
    ("rule", "field", "text"),
    [
        ({"rule": "selfish"}, "rule", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'selfish'"),
        ({"rule": "has(self.typo)"}, "rule", "compilation failed: ERROR: <input>:1:4: undefined field 'typo'"),
        ({"rule": "self.least"}, "rule", "cel expression must evaluate to a bool"),
        ({"rule": "self.least +"}, "rule", "compilation failed: ERROR: <input>:1:13: Syntax error"),
        ({"rule": "'text'"}, "rule", "cel expression must evaluate to a bool"),
        ({"rule": " "}, "rule", "Required value"),
        ({"rule": "true", "messageExpression": "nobody"}, "messageExpression", "messageExpression compilation failed:"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression", "must evaluate to a string"),
        ({"rule": "true", "message": "a\nb"}, "message", "message must not contain line breaks"),
        ({"rule": "true\n|| false"}, "message", "message must be specified if rule contains line breaks"),
        ({"rule": "true", "fieldPath": ".nothing"}, "fieldPath", "fieldPath must be a valid path"),
        ({"rule": "true", "reason": "Because"}, "reason", "Unsupported value"),
        ({"rule": "true", "optionalOldSelf": True}, "optionalOldSelf", "may not be set if oldSelf is not used in rule"),
    ],
)
def test_wrong_rule_is_refused_with_its_place(rule: Json, field: str, text: str) -> None:
    (cause,) = rules.problems(spec_of(rule, **RANGE), ROOT)
    assert cause.field == f"{SPEC}.{field}"
    assert text in cause.message


def test_old_self_in_an_atomic_list_is_refused() -> None:
    definition = spec_of(items={"type": "array", "items": {**INTEGER, rules.RULES: [FIXED]}})
    (cause,) = rules.problems(definition, ROOT)
    assert cause.field == f"{ROOT}.properties[spec].properties[items].items.{rules.RULES}[0].rule"
    assert "oldSelf cannot be used on the uncorrelatable portion of the schema" in cause.message


def test_rules_in_logical_schemas_are_refused() -> None:
    definition = schema({"type": "object", "anyOf": [{rules.RULES: [{"rule": "true"}]}]})
    (cause,) = rules.problems(definition, ROOT)
    assert (cause.field, cause.message) == (
        f"{ROOT}.properties[spec].anyOf[0].{rules.RULES}",
        "Forbidden: must be empty to be structural",
    )


def test_stored_rule_that_does_not_compile_refuses_writes() -> None:
    (text,) = broken(spec_of({"rule": "nobody"}), {})
    assert text.startswith("spec: Invalid value: the rule cannot be evaluated: Invalid value: ")


def test_wrong_types_are_reported_before_rules() -> None:
    definition = spec_of({"rule": "self.least > 1"}, **RANGE)
    tree = rules.compile_rules(definition)
    assert tree is not None
    wrong = crd.check({"spec": {"least": "x"}}, definition)
    (cause,) = crd.check_rules({"spec": {"least": "x"}}, None, tree, wrong)
    assert "some validation rules were not checked because the object was invalid" in cause.message


def expressions(tree: rules.RuleTree | None) -> list[Expression]:
    if tree is None:
        return []
    below = [*tree.properties.values(), tree.items, tree.additional]
    here = [rule.expression for rule in tree.rules if rule.expression is not None]
    return [*here, *(expression for item in below for expression in expressions(item))]


def test_own_rules_are_compiled_when_they_are_evaluated() -> None:
    definition = next(
        manifest.body
        for manifest in manifests(files_of(ClusterConfig()), "10.96.0.10", 2)
        if manifest.kind == "CustomResourceDefinition"
    )
    for version in definition["spec"]["versions"]:
        own = version["schema"]["openAPIV3Schema"]
        assert not rules.problems(own, "")
        result = expressions(rules.compile_rules(own))
        assert result
        for expression in result:
            assert not expression.compiled
            fields = {"start": "int", "end": "int"}
            again = Expression(f"{expression.source} ", {"self": environment.MESSAGES.declare("range", fields)})
            assert (again.compiled, again.result) == (True, expression.result)
            assert expression.evaluate({"self": {"start": 1, "end": 2}}) is True
            assert expression.compiled

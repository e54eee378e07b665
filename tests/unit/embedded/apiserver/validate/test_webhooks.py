"""Which webhook configurations are refused, and with which field."""

from typing import Any

import pytest

from podwire.embedded.apiserver.defaults import webhooks as defaults
from podwire.embedded.apiserver.validate.webhooks import check_configuration

Object = dict[str, Any]
RULE: Object = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
HOOK: Object = {
    "name": "a.example.com", "clientConfig": {"service": {"name": "s", "namespace": "n"}}, "rules": [RULE],
    "sideEffects": "None", "admissionReviewVersions": ["v1"],
}  # fmt: skip


def _wrong(**fields: Any) -> list[str]:
    result = check_configuration({"metadata": {"name": "c"}, "webhooks": [{**HOOK, **fields}]}, None)
    return [f"{cause.field}: {cause.message}" for cause in result]


def test_complete_configuration_is_accepted() -> None:
    assert _wrong() == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "short"}, 'webhooks[0].name: Invalid value: "short": should be a domain with at least three'),
        ({"admissionReviewVersions": []}, "webhooks[0].admissionReviewVersions: Required value: must specify one of"),
        ({"sideEffects": "Some"}, 'webhooks[0].sideEffects: Unsupported value: "Some"'),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between"),
        ({"failurePolicy": "Retry"}, 'webhooks[0].failurePolicy: Unsupported value: "Retry"'),
        ({"clientConfig": {}}, "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
        ({"clientConfig": {"url": "http://x/"}}, "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is"),
        ({"clientConfig": {"url": "https://x:bad/"}}, "webhooks[0].clientConfig.url: Required value: url must be"),
        (
            {"rules": [{**RULE, "operations": ["READ"]}]},
            "webhooks[0].rules[0].operations[0]: Unsupported value",
        ),
        ({"rules": [{**RULE, "resources": []}]}, "webhooks[0].rules[0].resources: Required value"),
        ({"rules": [{**RULE, "apiGroups": ["*", "apps"]}]}, "webhooks[0].rules[0].apiGroups: Invalid value"),
        (
            {"matchConditions": [{"name": "x", "expression": " requests.name == 'x'"}]},
            "webhooks[0].matchConditions[0].expression: Invalid value: \"requests.name == 'x'\": compilation failed: "
            "ERROR: <input>:1:9: undeclared reference to 'requests.name'",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "request.names == 'x'"}]},
            "webhooks[0].matchConditions[0].expression: Invalid value: \"request.names == 'x'\": compilation failed: "
            "ERROR: <input>:1:8: undefined field 'names'",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "params == null"}]},
            'webhooks[0].matchConditions[0].expression: Invalid value: "params == null": compilation failed',
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "object.data"}]},
            'webhooks[0].matchConditions[0].expression: Invalid value: "object.data": must evaluate to bool but got '
            "dyn",
        ),
        ({"matchConditions": [{"name": "x"}]}, "webhooks[0].matchConditions[0].expression: Required value"),
        (
            {"matchConditions": [{"name": "x", "expression": "true"}] * 2},
            'webhooks[0].matchConditions[1].name: Duplicate value: "x"',
        ),
        (
            {"matchConditions": [{"name": "not a name", "expression": "true"}]},
            'webhooks[0].matchConditions[0].name: Invalid value: "not a name"',
        ),
    ],
)
def test_wrong_field_is_named(fields: Object, problem: str) -> None:
    (result,) = _wrong(**fields)
    assert result.startswith(problem)


def test_webhooks_of_one_name_are_refused() -> None:
    result = check_configuration({"webhooks": [HOOK, HOOK]}, None)
    assert [str(cause.field) for cause in result] == ["webhooks[1].name"]


def test_configurations_get_their_defaults() -> None:
    obj: Object = {"webhooks": [{"rules": [{}], "clientConfig": {"service": {}}}]}
    defaults.mutating(obj)
    (hook,) = obj["webhooks"]
    assert (hook["failurePolicy"], hook["matchPolicy"], hook["timeoutSeconds"]) == ("Fail", "Equivalent", 10)
    assert (hook["reinvocationPolicy"], hook["rules"][0]["scope"]) == ("Never", "*")
    assert hook["clientConfig"]["service"]["port"] == 443

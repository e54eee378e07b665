import pytest

from podwire.embedded.apiserver.authorization.rules import (
    FULL_AUTHORITY,
    PolicyRule,
    RequestAttributes,
    missing_rules,
    parse_rules,
)


def rule(verbs: str, resources: str = "", groups: str = "", names: str = "", urls: str = "") -> PolicyRule:
    result = tuple("" if group == "core" else group for group in groups.split()) or (("",) if resources else ())
    return PolicyRule(tuple(verbs.split()), result, tuple(resources.split()), tuple(names.split()), tuple(urls.split()))


def asked(verb: str, resource: str = "", group: str = "", name: str = "", path: str = "") -> RequestAttributes:
    plural, _, subresource = resource.partition("/")
    return RequestAttributes(verb, group, "v1", plural, subresource, "ns", name, path)


ALLOWED = [
    (rule("get", "pods"), asked("get", "pods", name="a")),
    (rule("*", "pods"), asked("deletecollection", "pods")),
    (rule("get", "pods", "core apps"), asked("get", "pods", "apps")),
    (rule("get", "*", "*"), asked("get", "pods/log", "anything")),
    (rule("get", "pods/log"), asked("get", "pods/log")),
    (rule("update", "*/scale", "*"), asked("update", "deployments/scale", "apps")),
    (rule("get", "secrets", names="a b"), asked("get", "secrets", name="b")),
    (rule("get", urls="/healthz"), asked("get", path="/healthz")),
    (rule("get", urls="/healthz/*"), asked("get", path="/healthz/etcd")),
    (rule("*", urls="*"), asked("post", path="/anything/else")),
]
REFUSED = [
    (rule("get", "pods"), asked("list", "pods")),
    (rule("get", "pods"), asked("get", "pods/log")),
    (rule("get", "pods"), asked("get", "pods", "metrics.k8s.io")),
    (rule("get", "*/scale", "*"), asked("get", "deployments", "apps")),
    (rule("get list", "secrets", names="a"), asked("get", "secrets", name="b")),
    (rule("get list", "secrets", names="a"), asked("list", "secrets")),
    (rule("create", "secrets", names="a"), asked("create", "secrets")),
    (rule("get", urls="/healthz"), asked("get", path="/healthz/etcd")),
    (rule("*", "*", "*"), asked("get", path="/metrics")),
    (rule("*", urls="*"), asked("get", "pods")),
]


@pytest.mark.parametrize(("role", "action"), ALLOWED)
def test_a_rule_allows(role: PolicyRule, action: RequestAttributes) -> None:
    assert role.allows(action)


@pytest.mark.parametrize(("role", "action"), REFUSED)
def test_a_rule_does_not_allow(role: PolicyRule, action: RequestAttributes) -> None:
    assert not role.allows(action)


@pytest.mark.parametrize(
    ("held", "policy_rules", "missing"),
    [
        ([rule("get list", "pods secrets")], [rule("get", "secrets")], []),
        ([rule("*", "*", "*")], [rule("get", "pods/log", "apps", "a")], []),
        ([rule("get", "pods"), rule("list", "pods")], [rule("get list", "pods")], []),
        ([rule("get", "*/scale", "apps")], [rule("get", "deployments/scale", "apps")], []),
        ([rule("get", "secrets", names="a b")], [rule("get", "secrets", names="a")], []),
        ([rule("get", urls="/api/*")], [rule("get", urls="/api/v1")], []),
        (FULL_AUTHORITY, FULL_AUTHORITY, []),
        (
            [rule("get", "pods")],
            [rule("get list watch", "pods")],
            ['{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}'],
        ),
        (
            [rule("get", "secrets", names="a")],
            [rule("get", "secrets")],
            ['{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'],
        ),
        (
            [],
            [rule("get", "secrets", names="a b")],
            [
                '{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}',
                '{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}',
            ],
        ),
        (
            [rule("*", "*", "*")],
            [rule("get", urls="/metrics")],
            ['{NonResourceURLs:["/metrics"], Verbs:["get"]}'],
        ),
        (
            [rule("get list", "pods")],
            [rule("*", "pods")],
            ['{APIGroups:[""], Resources:["pods"], Verbs:["*"]}'],
        ),
    ],
)
def test_missing_rights_are_named(held: list[PolicyRule], policy_rules: list[PolicyRule], missing: list[str]) -> None:
    assert [str(missing_rule) for missing_rule in missing_rules(held, policy_rules)] == missing


def test_rules_are_read_as_stored() -> None:
    saved = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"nonResourceURLs": ["/a"], "verbs": ["get"]},
    ]
    assert parse_rules(saved) == (rule("get", "pods"), rule("get", urls="/a"))
    assert parse_rules(None) == ()

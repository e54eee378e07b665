"""Rules that others leave nothing for."""

from tests.unit.policy.check.clusters import findings_of, ids, index, policy

from podwire.policy.check.finding import NOTE, WARNING
from podwire.policy.check.redundant import check

_WEB = "{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}"
_ALL = "{from: [{podSelector: {}}]}"


def test_a_rule_that_another_rule_covers() -> None:
    result = findings_of(check, policy("shop/p", f"podSelector: {{}}, ingress: [{_WEB}, {_ALL}]"))
    assert result == [("covered", "spec.ingress[0]", "spec.ingress[1] allows the same connections")]


def test_of_two_equal_rules_the_second_is_superfluous() -> None:
    twice = policy("shop/p", f"podSelector: {{}}, ingress: [{_WEB}, {_WEB}]")
    assert ids(check, twice) == [("covered", "spec.ingress[1]")]
    item, other = (policy(f"shop/{name}", f"podSelector: {{}}, ingress: [{_WEB}]") for name in "ab")
    result = list(check(index(item, other)))
    assert [(entry.name, entry.text) for entry in result] == [
        ("shop/b", "spec.ingress[0] of shop/a allows the same connections")
    ]


def test_policy_for_fewer_pods_does_not_cover_a_wider_one() -> None:
    few = policy("shop/few", f"podSelector: {{matchLabels: {{app: db}}}}, ingress: [{_ALL}]")
    many = policy("shop/many", f"podSelector: {{}}, ingress: [{_WEB}]")
    other = policy("blog/many", f"podSelector: {{}}, ingress: [{_ALL}]")
    assert ids(check, few, many, other) == []


def rule(action: str, peers: str = "namespaces: {}", ports: str = "") -> str:
    return f"{{action: {action}, from: [{{{peers}}}]{ports}}}"


_TCP_1 = ", protocols: [{tcp: {destinationPort: {number: 1}}}]"


def test_a_rule_that_is_never_reached() -> None:
    shadowed = policy("p", f"ingress: [{rule('Deny')}, {rule('Accept', 'namespaces: {}', _TCP_1)}]")
    result = list(check(index(shadowed)))
    assert [(item.id, item.field, item.severity) for item in result] == [("never-reached", "spec.ingress[1]", WARNING)]
    assert "spec.ingress[0] denies the same connections before" in result[0].text
    same = policy("p", f"ingress: [{rule('Deny')}, {rule('Deny', 'namespaces: {}', _TCP_1)}]")
    assert [item.severity for item in check(index(same))] == [NOTE]
    assert ids(check, policy("p", f"ingress: [{rule('Accept', ports=_TCP_1)}, {rule('Deny')}]")) == []


def test_priorities_say_which_policy_is_first() -> None:
    deny = policy("deny", f"priority: 5, ingress: [{rule('Deny')}]")
    accept = policy("accept", f"priority: 9, ingress: [{rule('Accept')}]")
    sales = policy(
        "sales", f"priority: 9, subject: {{namespaces: {{matchLabels: {{team: sales}}}}}}, ingress: [{rule('Pass')}]"
    )
    baseline = policy("base", f"tier: Baseline, ingress: [{rule('Accept')}]")
    assert [item.name for item in check(index(deny, accept, sales, baseline))] == ["accept", "sales"]
    subset = policy("accept", f"priority: 9, ingress: [{rule('Accept', ports=_TCP_1)}]")
    assert ids(check, policy("deny", f"priority: 10, ingress: [{rule('Deny')}]"), subset) == []


def test_network_policies_cannot_allow_what_admin_policies_deny() -> None:
    deny = policy("deny", f"ingress: [{rule('Deny', 'namespaces: {}')}]")
    allow = policy("shop/p", f"podSelector: {{}}, ingress: [{_WEB}]")
    assert ids(check, deny, allow) == [("overruled", "spec.ingress[0]")]
    first = policy("first", f"priority: 1, ingress: [{rule('Pass', 'namespaces: {matchLabels: {team: sales}}')}]")
    assert ids(check, first, deny, allow) == []
    elsewhere = policy("deny", f"subject: {{namespaces: {{matchLabels: {{team: press}}}}}}, ingress: [{rule('Deny')}]")
    assert ids(check, elsewhere, allow) == []


def in_audit(*names: str, **policies: str) -> dict[str, dict[str, object]]:
    """Policies by the words of their names; those that are named are in audit."""
    created = {}
    for word, spec in policies.items():
        meta = {"mode": "audit"} if word in names else {}
        created[word] = policy(f"shop/{word}" if "podSelector" in spec else word, spec, **meta)
    return created


def test_audited_policy_does_not_cover_an_enforced_policy() -> None:
    specs = {"one": f"podSelector: {{}}, ingress: [{_WEB}]", "two": f"podSelector: {{}}, ingress: [{_ALL}]"}
    for audited, covered in (
        ((), ["shop/one"]),
        (("two",), []),
        (("one",), ["shop/one"]),
        (("one", "two"), ["shop/one"]),
    ):
        assert [item.name for item in check(index(*in_audit(*audited, **specs).values()))] == covered
    same = {"one": specs["two"], "two": specs["two"]}
    assert [item.name for item in check(index(*in_audit("one", **same).values()))] == ["shop/one"]
    assert [item.name for item in check(index(*in_audit("two", **same).values()))] == ["shop/two"]


def test_audited_policies_decide_nothing_before_enforced_ones() -> None:
    deny, accept = f"priority: 1, ingress: [{rule('Deny')}]", f"priority: 2, ingress: [{rule('Accept')}]"
    allow = f"podSelector: {{}}, ingress: [{_WEB}]"
    specs = {"deny": deny, "accept": accept, "web": allow}

    def findings_in_audit(*audited: str) -> list[tuple[str, str]]:
        return [(item.id, item.name) for item in check(index(*in_audit(*audited, **specs).values()))]

    assert findings_in_audit() == [("never-reached", "accept"), ("overruled", "shop/web")]
    assert findings_in_audit("deny") == []
    assert findings_in_audit("accept") == [("never-reached", "accept"), ("overruled", "shop/web")]
    assert findings_in_audit("deny", "accept", "web") == [("never-reached", "accept"), ("overruled", "shop/web")]


def test_accept_in_audit_does_not_precede_a_deny() -> None:
    specs = {
        "first": f"priority: 1, ingress: [{rule('Accept', 'namespaces: {matchLabels: {team: press}}')}]",
        "deny": f"priority: 2, ingress: [{rule('Deny')}]",
        "web": f"podSelector: {{}}, ingress: [{_WEB}]",
    }
    assert [item.id for item in check(index(*in_audit(**specs).values()))] == []
    assert [item.id for item in check(index(*in_audit("first", **specs).values()))] == ["overruled"]
    assert [item.id for item in check(index(*in_audit("first", "web", **specs).values()))] == []

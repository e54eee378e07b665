"""All checks together, annotations that ignore, and the page that lists what is found."""

import ast
from pathlib import Path

import pytest
from tests.cases.policy_table import Case, read_cases
from tests.unit.policy.check.clusters import CLUSTER, index, policy

from podwire.policy.check.checks import CHECKS, check
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import KINDS

_ROOT = Path(__file__).parents[4]
CASES = read_cases(_ROOT / "tests/cases/policies")


def findings(*policies: dict[str, object]) -> list[tuple[str, str]]:
    cluster_index: ClusterIndex = index(*policies)
    return [(item.id, item.severity) for item in check(cluster_index.world, cluster_index.details)]


def test_good_policies_are_without_findings() -> None:
    deny = policy("shop/deny", "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]")
    allow = policy(
        "shop/allow",
        "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], "
        "ports: [{port: sql}]}]",
    )
    admin = policy("admin", "ingress: [{action: Pass, from: [{namespaces: {}}]}]")
    assert findings(deny, allow, admin) == []


def test_an_annotation_ignores() -> None:
    spec = "podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}, {port: admin}]}]"
    assert findings(policy("shop/p", spec)) == [("service-port", "warning"), ("port-name-unknown", "warning")]
    assert findings(policy("shop/p", spec, ignore="service-port, port-name-unknown")) == []
    assert findings(policy("shop/p", spec, ignore="service-port,no-such")) == [
        ("unknown-ignore", "warning"),
        ("port-name-unknown", "warning"),
    ]


def test_annotations_that_are_misspelled() -> None:
    spec = "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]"
    assert findings(policy("shop/p", spec, mode="enforce", log="none", enforced="{}")) == []
    cluster_index: ClusterIndex = index(policy("shop/p", spec, mode="Audit", logs="all"))
    assert [(item.id, item.field, item.text) for item in check(cluster_index.world, cluster_index.details)] == [
        (
            "unknown-annotation",
            "metadata.annotations[podwire.io/logs]",
            "unknown annotation, it has no effect; podwire reads podwire.io/enforced, podwire.io/mode"
            ", podwire.io/log, podwire.io/ignore",
        ),
        (
            "unknown-annotation",
            "metadata.annotations[podwire.io/mode]",
            "unknown value 'Audit', expected one of audit, enforce; the policy is enforced",
        ),
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_packet_table_is_checked_without_trouble(case: Case) -> None:
    for finding in check(case.world):
        assert finding.id in KINDS
        assert finding.text


def test_every_kind_of_finding_is_tested_and_documented() -> None:
    page = (_ROOT / "docs/policy-check.md").read_text()
    folder = _ROOT / "src/podwire/policy/check"
    arguments = {
        node.value
        for path in folder.glob("*.py")
        if path.name != "finding.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for name, (severity, meaning) in KINDS.items():
        assert f"| `{name}` | {severity} | {meaning} |" in page
        assert name in arguments
    assert page.count("\n| `") == len(KINDS)


def test_checks_are_listed_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert "kind: NetworkPolicy" not in CLUSTER

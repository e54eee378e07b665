"""Types, sections and empty lists."""

import pytest
from tests.unit.policy.check.clusters import ids, policy

from podwire.policy.check.types import check


@pytest.mark.parametrize(
    ("spec", "result"),
    [
        ("policyTypes: [Ingress], egress: [{}]", [("section-ignored", "spec.egress")]),
        (
            "policyTypes: [Egress], ingress: [{from: [{podSelector: {}}]}]",
            [("section-ignored", "spec.ingress")],
        ),
        ("egress: [{to: [{podSelector: {}}]}]", [("isolates-ingress-too", "spec.egress")]),
        ("policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]", []),
        ("ingress: [{from: [{podSelector: {}}]}], egress: [{to: [{podSelector: {}}]}]", []),
        ("ingress: [], egress: [{to: [{podSelector: {}}]}]", []),
        ("egress: []", [("does-not-isolate", "spec.egress")]),
        ("policyTypes: [Egress], ingress: []", [("does-not-isolate", "spec.ingress")]),
        ("policyTypes: [Ingress, Egress], ingress: [], egress: []", []),
        ("ingress: [{}]", [("allows-all", "spec.ingress[0]")]),
        (
            "ingress: [{from: [], ports: [{port: 80}]}]",
            [("empty-list-allows-all", "spec.ingress[0].from")],
        ),
        (
            "ingress: [{from: [{podSelector: {}}], ports: []}]",
            [("empty-list-allows-all", "spec.ingress[0].ports")],
        ),
    ],
)
def test_a_network_policy(spec: str, result: list[tuple[str, str]]) -> None:
    assert ids(check, policy("shop/p", f"podSelector: {{}}, {spec}")) == result


def test_manifests_of_some_policies_are_unknown() -> None:
    assert ids(check, policy("shop/p", "podSelector: {}, egress: [{to: [{podSelector: {}}]}]"), written={}) == []


def test_a_cluster_policy() -> None:
    assert ids(check, policy("p", "ingress: []")) == [("no-rules", "spec")]
    newer = policy("p", "egress: [{action: Deny, to: [{domainNames: [example.com]}]}]")
    assert ids(check, newer) == [("unknown-kind", "spec.egress[0]")]

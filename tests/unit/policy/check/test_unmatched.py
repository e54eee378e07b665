"""Selectors that match nothing."""

import pytest
from tests.unit.policy.check.clusters import CLUSTER, findings_of, ids, policy

from podwire.policy.check.unmatched import check


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        ("matchLabels: {app: webb}", "no pod of namespace shop has app=webb, 1 pod has app=web"),
        (
            "matchLabels: {app: cache}",
            "no pod of namespace shop has app=cache; values of app there are db (1), web (1)",
        ),
        ("matchLabels: {ap: web}", "no pod of namespace shop has a label ap, 1 pod has app=web"),
        ("matchLabels: {tyer: back}", "no pod of namespace shop has a label tyer; there is tier"),
        (
            "matchLabels: {app: db, tier: front}",
            "of those with tier=front, no pod of namespace shop has app=db; values of app there are web (1)",
        ),
        ("matchExpressions: [{key: app, operator: DoesNotExist}]", "no pod of namespace shop is without a label app"),
        (
            "matchLabels: {a: b, c: d}",
            "no pod of namespace shop matches all terms: a=b matches no pod, c=d matches no pod",
        ),
    ],
)
def test_a_policy_that_selects_no_pod(selector: str, reason: str) -> None:
    result = findings_of(check, policy("shop/p", f"podSelector: {{{selector}}}"))
    assert [item[:2] for item in result] == [("selects-nothing", "spec.podSelector")]
    assert reason in result[0][2]


def test_pods_that_policies_do_not_see() -> None:
    agent = policy("shop/p", "podSelector: {matchLabels: {app: agent}}")
    job = policy("shop/p", "podSelector: {matchLabels: {app: job}}")
    everybody = policy("shop/p", "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: agent}}}]}]")
    assert ids(check, agent) == [("host-network-only", "spec.podSelector")]
    assert "ended" in findings_of(check, job)[0][2]
    assert ids(check, everybody) == [
        ("host-network-partly", "spec.podSelector"),
        ("host-network-only", "spec.ingress[0].from[0].podSelector"),
    ]
    assert ids(check, policy("p", "ingress: []")) == [], "cluster policies are about whole namespaces"


@pytest.mark.parametrize(
    ("peer", "kind", "field", "reason"),
    [
        ("podSelector: {matchLabels: {app: webb}}", "peer-matches-nothing", ".podSelector", "1 pod has app=web"),
        ("podSelector: {matchLabels: {role: reader}}", "own-namespace-only", ".podSelector", "namespace blog"),
        ("namespaceSelector: {matchLabels: {team: pres}}", "peer-matches-nothing", ".namespaceSelector", "team=press"),
        (
            "namespaceSelector: {matchLabels: {name: blog}}",
            "peer-matches-nothing",
            ".namespaceSelector",
            "metadata.name",
        ),
        (
            "namespaceSelector: {matchLabels: {team: press}}, podSelector: {matchLabels: {app: db}}",
            "peer-matches-nothing",
            ".podSelector",
            "no pod of namespace blog has app=db",
        ),
    ],
)
def test_a_peer_that_matches_nothing(peer: str, kind: str, field: str, reason: str) -> None:
    result = findings_of(
        check, policy("shop/p", f"podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{{{peer}}}]}}]")
    )
    assert [item[:2] for item in result] == [(kind, f"spec.ingress[0].from[0]{field}")]
    assert reason in result[0][2]


def test_selectors_that_match_are_no_finding() -> None:
    peers = "[{podSelector: {matchLabels: {app: web}}}, {namespaceSelector: {}}, {ipBlock: {cidr: 192.0.2.0/24}}]"
    assert (
        ids(check, policy("shop/p", f"podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: {peers}}}]")) == []
    )


def test_objects_missing_in_files_are_no_finding() -> None:
    dns = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}"
    out = policy("shop/p", f"podSelector: {{}}, egress: [{{to: [{{{dns}}}]}}]")
    watched = policy("shop/w", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {zone: a}}}]}]")
    other = policy("till/p", "podSelector: {matchLabels: {app: till}}")
    slip = policy("shop/q", "podSelector: {}, egress: [{to: [{namespaceSelector: {matchLabels: {team: pres}}}]}]")
    details = {"complete": False, "cluster": CLUSTER.replace("app: agent", "app: web")}
    assert ids(check, out, **details) == [("host-network-partly", "spec.podSelector")]
    assert [item[0] for item in findings_of(check, watched, other, **details)][1:] == ["not-checked", "not-checked"]
    assert ("peer-matches-nothing", "spec.egress[0].to[0].namespaceSelector") in ids(check, slip, **details)
    assert ("peer-matches-nothing", "spec.egress[0].to[0].namespaceSelector") in ids(check, out)


def test_nodes_of_a_cluster_policy() -> None:
    out = policy("p", "egress: [{action: Deny, to: [{nodes: {matchLabels: {role: gateway}}}]}]")
    assert ids(check, out) == [("peer-matches-nothing", "spec.egress[0].to[0].nodes")]
    assert ids(check, out, complete=False, assumed_addresses=True) == []

"""Cluster policies that contradict each other at one priority."""

from tests.unit.policy.check.clusters import findings_of, ids, policy

from podwire.policy.check.priority import check

_FROM_PRESS = "[{namespaces: {matchLabels: {team: press}}}]"


def cluster(name: str, action: str, peers: str = _FROM_PRESS, more: str = "", rest: str = "") -> dict[str, object]:
    return policy(name, f"ingress: [{{action: {action}, from: {peers}{rest}}}]{more}")


def test_accept_and_deny() -> None:
    result = findings_of(check, cluster("a", "Accept"), cluster("b", "Deny", "[{namespaces: {}}]"))
    assert [item[:2] for item in result] == [("equal-priority", "spec.ingress[0]")]
    assert "podwire evaluates a first, by name" in result[0][2]


def test_no_contradiction() -> None:
    item = cluster("a", "Accept")
    tcp = ", protocols: [{tcp: {destinationPort: {number: %d}}}]"
    sales = ", subject: {namespaces: {matchLabels: {team: %s}}}"
    assert ids(check, item, cluster("b", "Accept")) == []
    assert ids(check, item, cluster("b", "Deny", more=", priority: 11")) == []
    assert ids(check, item, cluster("b", "Deny", more=", tier: Baseline")) == []
    assert ids(check, item, cluster("b", "Deny", "[{namespaces: {matchLabels: {team: sales}}}]")) == []
    assert ids(check, cluster("a", "Accept", rest=tcp % 1), cluster("b", "Deny", rest=tcp % 2)) == []
    assert ids(check, cluster("a", "Accept", more=sales % "sales"), cluster("b", "Deny", more=sales % "press")) == []


def test_networks_and_nodes_meet_where_they_overlap() -> None:
    def out(name: str, action: str, peer: str) -> dict[str, object]:
        return policy(name, f"egress: [{{action: {action}, to: [{{{peer}}}]}}]")

    wide, part = "networks: [10.0.0.0/8]", "networks: [10.1.0.0/16]"
    assert ids(check, out("a", "Accept", part), out("b", "Deny", wide)) == [("equal-priority", "spec.egress[0]")]
    assert ids(check, out("a", "Accept", part), out("b", "Deny", "networks: [10.2.0.0/16]")) == []
    assert ids(check, out("a", "Accept", "nodes: {}"), out("b", "Pass", "nodes: {}")) == [
        ("equal-priority", "spec.egress[0]")
    ]

"""Whose verdicts change between two clusters."""

import msgspec
from tests.unit.policy.diff.worlds import CLUSTER, world

from podwire.policy.diff.compare import DecidingRule, PortChange, VerdictDifference, compare

DB = "podSelector: {matchLabels: {app: db}}"


def only(difference: VerdictDifference) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    return [source.names for source in difference.sources], [
        destination.names for destination in difference.destinations
    ]


def ports(changes: tuple[PortChange, ...]) -> list[tuple[str, int, int, bool]]:
    return [(change.protocol, change.first, change.last, change.after.allowed) for change in changes]


def test_nothing_changes() -> None:
    item = world(f"shop/db: {DB}, ingress: [{{ports: [{{port: sql}}]}}]")
    other = world(f"shop/other: {DB}, ingress: [{{ports: [{{port: 5432}}]}}]")
    assert compare(item, item).differences == ()
    assert compare(item, other).differences == (), "a name and a number that are the same port"


def test_a_range_of_ports() -> None:
    web = "from: [{podSelector: {matchLabels: {app: web}}}]"
    old = world(f"shop/db: {DB}, ingress: [{{{web}, ports: [{{port: 80, endPort: 90}}]}}]")
    new = world(f"shop/db: {DB}, ingress: [{{{web}, ports: [{{port: 85, endPort: 95}}]}}]")
    (difference,) = compare(old, new).differences
    names = tuple(f"shop/web-{number}" for number in range(4))
    assert only(difference) == ([names], [("shop/db",)])
    assert difference.families == (4, 6)
    assert ports(difference.changes) == [("TCP", 80, 84, False), ("TCP", 91, 95, True)]
    gone, come = difference.changes
    assert gone.before.reasons == (DecidingRule(direction="Ingress", policy="shop/db", rule=0),)
    assert gone.after.reasons == (DecidingRule(direction="Ingress", isolated_by=("shop/db",)),)
    assert come.before.reasons == gone.after.reasons


def test_who_is_denied_by_both_ends_is_denied_by_both() -> None:
    both = "podSelector: {}, policyTypes: [Ingress, Egress]"
    result = compare(world(), world(f"shop/all: {both}")).differences
    within = next(item for item in result if {end.kind for end in (*item.sources, *item.destinations)} == {"pods"})
    assert [reason.direction for reason in within.changes[0].after.reasons] == ["Egress", "Ingress"]


def test_addresses_outside_are_cut_at_the_borders_of_blocks() -> None:
    old = world(f"shop/db: {DB}, ingress: [{{from: [{{ipBlock: {{cidr: 192.0.2.0/24}}}}]}}]")
    new = world(f"shop/db: {DB}, ingress: [{{from: [{{ipBlock: {{cidr: 192.0.2.0/24, except: [192.0.2.64/26]}}}}]}}]")
    (difference,) = compare(old, new).differences
    assert only(difference) == ([("192.0.2.64/26",)], [("shop/db",)])
    assert difference.families == (4,)


def test_a_pod_and_its_own_node() -> None:
    shut = f"shop/db: {DB}, policyTypes: [Ingress, Egress]"
    result = compare(world(), world(shut)).differences
    nodes = [(item.own_node, end.names) for item in result for end in item.destinations if end.kind == "nodes"]
    assert nodes == [(False, ("n2",))]
    strict = compare(world(), world(shut), own_node_egress=False).differences
    assert [end.names for item in strict if item.own_node for end in item.destinations] == [("n1",)]
    deny = "p: egress: [{action: Deny, to: [{nodes: {}}]}]"
    own = [difference for difference in compare(world(), world(deny)).differences if difference.own_node]
    assert {name for item in own for end in item.sources for name in end.names} >= {"shop/db", "shop/web-0"}
    assert {name for item in own for end in item.destinations for name in end.names} == {"n1", "n2"}


def test_a_single_pod_does_not_lose_itself() -> None:
    shut = f"shop/db: {DB}, policyTypes: [Ingress, Egress]"
    result = compare(world(), world(shut)).differences
    assert not [item for item in result if only(item)[0] == [("shop/db",)] and ("shop/db",) in only(item)[1]]
    among = "shop/web: podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]"
    names = tuple(f"shop/web-{number}" for number in range(4))
    assert any(
        names in only(difference)[0] and names in only(difference)[1]
        for difference in compare(world(), world(among)).differences
    )


def test_labels_of_pods_and_namespaces_count_too() -> None:
    policy = f"shop/db: {DB}, policyTypes: [Ingress]"
    turned = CLUSTER.replace("{name: db, namespace: shop, labels: {app: db}}", "{name: db, namespace: shop}")
    result = compare(world(policy), world(policy, cluster=turned)).differences
    assert result
    assert all(change.after.allowed for item in result for change in item.changes)
    press = "shop/db: podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: press}}}]}]"
    named = CLUSTER + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: press}}\n"
    assert compare(world(press), world(press, cluster=named)).differences


def test_policies_in_audit_are_not_in_force() -> None:
    audited = world(f"shop/db: {DB}, policyTypes: [Ingress]")
    (policy,) = audited.policies
    meta = msgspec.structs.replace(policy.metadata, annotations={"podwire.io/mode": "audit"})
    audited = msgspec.structs.replace(audited, policies=(msgspec.structs.replace(policy, metadata=meta),))
    assert compare(world(), audited).differences == ()
    assert compare(audited, world(f"shop/db: {DB}, policyTypes: [Ingress]")).differences


def test_pods_of_only_one_side_are_listed() -> None:
    fewer = world(cluster=CLUSTER.replace("replicas: 4", "replicas: 3"))
    result = compare(world(), fewer)
    assert result.differences == ()
    assert result.groups.only_old == ("shop/web-3",)
    assert result.groups.only_new == ()

"""On how many nodes a policy is in force."""

from msgspec.structs import replace

from podwire.model.meta import ObjectMeta
from podwire.model.policy import NetworkPolicy
from podwire.policy.status.coverage import Coverage, NodeReport, coverage_of, keep_since, newest_step, parse
from podwire.policy.status.digest import Digest, History
from podwire.policy.status.report import Commit, EnforcedPolicies

KIND = "NetworkPolicy"
META = ObjectMeta(name="db", namespace="shop", uid="u", generation=1)
NEWER = replace(META, generation=2)


def digest(meta: ObjectMeta) -> str:
    created = Digest()
    created.put("shop/db", meta)
    return str(created)


def place(*object_metas: tuple[ObjectMeta, int, float], ready: bool = True, problem: str = "") -> NodeReport:
    commits = tuple(Commit(digest(meta), at_ms, took_ms) for meta, at_ms, took_ms in object_metas)
    return NodeReport(ready, EnforcedPolicies("", {KIND: commits}, problem))


def changed() -> History:
    history = History([("shop/db", META)])
    history.put("shop/db", NEWER)
    return history


def coverage(policy: ObjectMeta, history: History, **node_report: NodeReport) -> Coverage:
    created = coverage_of("shop/db", KIND, NetworkPolicy(metadata=policy), history, node_report)
    assert created is not None
    return created


def test_on_all_nodes_since_the_last_of_them() -> None:
    output = coverage(NEWER, changed(), a=place((META, 1000, 3), (NEWER, 2000, 4)), b=place((NEWER, 2345, 11.6)))
    assert output == Coverage(generation=2, nodes="2/2", since="1970-01-01T00:00:02.345Z", took="12ms")
    assert output.complete
    assert output.text() == '{"generation":2,"nodes":"2/2","since":"1970-01-01T00:00:02.345Z","took":"12ms"}'
    assert parse(output.text()) == output


def test_nodes_that_lag_behind_are_named_with_the_reason() -> None:
    lagging = place((META, 1000, 3), problem="nft: no memory")
    output = coverage(NEWER, changed(), a=place((NEWER, 2000, 4)), b=lagging, c=place((META, 1000, 3)), d=place())
    silent = "its agent has not reported the policy as in force"
    assert (output.nodes, output.since, output.took) == ("1/4", "", "")
    assert output.missing == ("b: nft: no memory", f"c: {silent}", f"d: {silent}")
    assert not output.explained and coverage(NEWER, changed(), b=lagging).explained
    assert not output.complete


def test_policies_unchanged_since_a_report_are_in_force() -> None:
    history = changed()
    other = replace(META, name="web", uid="w")
    history.put("shop/web", other)
    only = place((NEWER, 2000, 4))
    assert coverage(NEWER, history, a=only).nodes == "1/1"
    created = coverage_of("shop/web", KIND, NetworkPolicy(metadata=other), history, {"a": only})
    assert created is not None and created.nodes == "0/1"


def test_nodes_that_are_not_ready_are_listed_separately() -> None:
    output = coverage(NEWER, changed(), a=place((NEWER, 2000, 4)), b=place((META, 1000, 3), ready=False))
    assert (output.nodes, output.not_ready, output.complete) == ("1/1", ("b",), True)
    output = coverage(NEWER, changed(), b=place((NEWER, 1000, 3), ready=False))
    assert (output.nodes, output.complete) == ("0/0", False)


def test_without_reports_there_is_no_coverage() -> None:
    assert coverage_of("shop/db", KIND, NetworkPolicy(metadata=META), changed(), {}) is None


def test_a_policy_in_audit_says_so() -> None:
    meta = replace(META, annotations={"podwire.io/mode": "audit"})
    history = History([("shop/db", meta)])
    assert coverage(meta, history, a=place((meta, 1, 1))).mode == "audit"


def test_a_node_more_does_not_change_since_when() -> None:
    before = Coverage(generation=2, nodes="2/2", since="2026-01-01T00:00:00.000Z", took="9ms")
    now = replace(before, nodes="3/3", since="2026-02-01T00:00:00.000Z", took="1ms")
    assert keep_since(before, now) == replace(before, nodes="3/3")
    assert keep_since(replace(before, generation=1), now) == now
    assert keep_since(replace(before, mode="audit"), now) == now
    assert keep_since(replace(before, nodes="1/2"), now) == now
    assert keep_since(None, now) == now


def test_foreign_annotation_values_are_ignored() -> None:
    assert parse("") is None and parse("[]") is None
    assert parse('{"nodes":"1/1","later":true}') == Coverage(nodes="1/1")


def test_how_far_a_node_has_come() -> None:
    history = changed()
    assert newest_step(history, KIND, place((META, 1, 1), (NEWER, 2, 1)).report) == 1
    assert newest_step(history, KIND, place((META, 1, 1)).report) == 0
    assert newest_step(history, KIND, None) == -1

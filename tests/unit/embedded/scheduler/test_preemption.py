"""The pods that are deleted to make room for a pod of higher priority."""

from typing import Any

import msgspec
from tests.unit.embedded.scheduler.test_decision import cluster, container, decide, node, pod, put, term

from podwire.embedded.scheduler.preemption import NEVER, REASON, TERMINATING, PreemptionRequest, ineligible, plan
from podwire.embedded.scheduler.usage import SchedulerState, pod_demand
from podwire.model.pod import Pod
from podwire.model.workload import PodDisruptionBudget

AFFINE = "requiredDuringSchedulingIgnoredDuringExecution"


def sized(name: str, cpu: str, priority: int, *, start: str = "", labels: dict[str, str] | None = None) -> Pod:
    spec = container({"cpu": cpu}) | {"priority": priority}
    return msgspec.structs.replace(
        pod(name, spec, labels), status=msgspec.convert({"startTime": start or None}, type(pod("x").status))
    )


def budget(allowed: int, labels: dict[str, str], disrupted: tuple[str, ...] = ()) -> PodDisruptionBudget:
    status = {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")}
    spec = {"selector": {"matchLabels": labels}}
    return msgspec.convert({"metadata": {"name": "b", "namespace": "d"}, "spec": spec, "status": status},
                           PodDisruptionBudget)  # fmt: skip


def preempted(subject: Pod, state: SchedulerState, *budgets: PodDisruptionBudget) -> tuple[str, list[str]] | None:
    """The node and the names of the victims; checks that the state is as before."""
    before = {name: (dict(usage.used), set(usage.pods)) for name, usage in state.nodes.items()}
    decision = decide(subject, state)
    assert not decision.node
    chosen = plan(PreemptionRequest(pod_demand(subject), decision.movable), state, budgets)
    assert {name: (dict(usage.used), set(usage.pods)) for name, usage in state.nodes.items()} == before
    return (chosen.node, [victim.pod.metadata.name for victim in chosen.victims]) if chosen is not None else None


def test_only_pods_of_lower_priority_are_victims() -> None:
    state = cluster(node("n1"))
    put(state, sized("equal", "2", 5), "n1")
    assert preempted(sized("new", "1", 5), state) is None
    assert preempted(sized("new", "1", 6), state) == ("n1", ["equal"])


def test_as_many_pods_as_possible_stay_most_important_first() -> None:
    state = cluster(node("n1"))
    put(state, sized("young", "500m", 1, start="2026-01-02T00:00:00Z"), "n1")
    put(state, sized("old", "500m", 1, start="2026-01-01T00:00:00Z"), "n1")
    put(state, sized("higher", "500m", 2), "n1")
    put(state, sized("highest", "500m", 9), "n1")
    assert preempted(sized("new", "500m", 5), state) == ("n1", ["young"])
    assert preempted(sized("new", "1", 5), state) == ("n1", ["old", "young"])
    assert preempted(sized("new", "1500m", 5), state) == ("n1", ["higher", "old", "young"])
    assert preempted(sized("new", "2", 5), state) is None


def test_node_with_the_lowest_victims_is_chosen() -> None:
    state = cluster(node("n1"), node("n2"))
    put(state, sized("two", "2", 2), "n1")
    put(state, sized("one", "1", 1), "n2")
    put(state, sized("also-one", "1", 1), "n2")
    assert preempted(sized("new", "2", 5), state) == ("n2", ["also-one", "one"])


def test_node_with_fewer_victims_is_chosen() -> None:
    state = cluster(node("n1"), node("n2"))
    put(state, sized("a", "1", 1), "n1")
    put(state, sized("b", "1", 1), "n1")
    put(state, sized("c", "2", 1), "n2")
    assert preempted(sized("new", "2", 5), state) == ("n2", ["c"])


def test_node_whose_victims_started_last_is_chosen() -> None:
    state = cluster(node("n1"), node("n2"))
    put(state, sized("old", "2", 1, start="2026-01-01T00:00:00Z"), "n1")
    put(state, sized("young", "2", 1, start="2026-01-02T00:00:00Z"), "n2")
    assert preempted(sized("new", "2", 5), state) == ("n2", ["young"])


def test_disruption_budgets_hold_where_possible() -> None:
    state = cluster(node("n1"), node("n2"))
    put(state, sized("kept", "2", 1, labels={"app": "kept"}), "n1")
    put(state, sized("higher", "2", 3), "n2")
    assert preempted(sized("new", "2", 5), state) == ("n1", ["kept"])
    assert preempted(sized("new", "2", 5), state, budget(1, {"app": "kept"})) == ("n1", ["kept"])
    assert preempted(sized("new", "2", 5), state, budget(0, {"app": "kept"})) == ("n2", ["higher"])
    assert preempted(sized("new", "2", 5), state, budget(0, {"app": "kept"}, ("kept",))) == ("n1", ["kept"])
    assert preempted(sized("new", "2", 2), state, budget(0, {"app": "kept"})) == ("n1", ["kept"])


def test_pods_of_a_budget_stay_before_more_important_pods() -> None:
    state = cluster(node("n1"))
    put(state, sized("kept", "1", 1, labels={"app": "kept"}), "n1")
    put(state, sized("higher", "1", 3), "n1")
    assert preempted(sized("new", "1", 5), state, budget(0, {"app": "kept"})) == ("n1", ["higher"])


def test_taints_and_selectors_are_no_reason_to_delete_pods() -> None:
    state = cluster(node("n1"))
    put(state, sized("low", "2", 1), "n1")
    elsewhere = pod("new", container({"cpu": "2"}) | {"priority": 5, "nodeSelector": {"zone": "other"}})
    assert preempted(elsewhere, state) is None


def test_anti_affinity_and_host_ports_make_victims() -> None:
    shy: dict[str, Any] = {"affinity": {"podAntiAffinity": {AFFINE: [term({"app": "low"})]}}, "priority": 5}
    state = cluster(node("n1"))
    put(state, sized("low", "100m", 1, labels={"app": "low"}), "n1")
    put(state, sized("other", "100m", 1), "n1")
    assert preempted(pod("new", shy), state) == ("n1", ["low"])
    ports = container(ports=[{"containerPort": 80, "hostPort": 80}])
    put(state, pod("web", ports | {"priority": 1}), "n1")
    assert preempted(pod("new", ports | {"priority": 5}), state) == ("n1", ["web"])


def test_pod_that_must_not_preempt() -> None:
    state = cluster(node("n1"))
    subject = pod("new", {"priority": 5})
    assert ineligible(subject, None) == ""
    assert ineligible(pod("new", {"priority": 5, "preemptionPolicy": "Never"}), None) == NEVER
    put(state, sized("low", "1", 1), "n1")
    usage = state.nodes["n1"]
    assert ineligible(subject, usage) == ""
    assert ineligible(subject, usage, {"low"}) == TERMINATING
    ending = {"name": "low", "uid": "low", "namespace": "d", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": REASON}
    put(state, msgspec.convert({"metadata": ending, "status": {"conditions": [condition]}}, Pod), "n1")
    assert ineligible(subject, usage) == TERMINATING
    assert ineligible(pod("new", {"priority": -1}), usage) == ""


def test_nominated_pods_count_for_pods_of_lower_priority() -> None:
    state = cluster(node("n1"))
    state.nominated["waiting"] = ("n1", pod_demand(sized("waiting", "2", 5)))
    for priority, free in ((4, False), (5, False), (6, True)):
        demand = pod_demand(sized("new", "1", priority))
        with state.counting_nominated(demand):
            assert bool(decide(demand.pod, state).node) == free
    own = state.nominated["waiting"][1]
    with state.counting_nominated(own):
        assert decide(own.pod, state).node == "n1"
    assert not state.nodes["n1"].pods

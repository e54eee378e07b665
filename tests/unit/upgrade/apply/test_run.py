"""The order of an upgrade, gates, rollback, and that a run may end between any two of its writes."""

import asyncio
from collections.abc import Iterable
from typing import cast

import msgspec
import pytest
from tests.fakes.upgrade_cluster import Killed, UpgradeCluster, answer
from tests.unit.upgrade.apply.scenario import COREFILE, MIGRATED, make_cluster, make_plan

from podwire.errors import ClusterError, ConfigError
from podwire.flows.proof import ObjectDiff
from podwire.kube.client import Client
from podwire.upgrade.apply import run
from podwire.upgrade.apply.run import ApplyOptions, UpgradeRun
from podwire.upgrade.plan.values import UpgradePlan, UpgradeStep, identified

IMAGE = "podwire:1"


def apply(cluster: UpgradeCluster, plan: UpgradePlan | None = None, **options: object) -> list[str]:
    lines: list[str] = []
    settings = msgspec.structs.replace(ApplyOptions(image=IMAGE), **options)
    asyncio.run(UpgradeRun(cast("Client", cluster), settings, lines.append).apply(plan))
    return lines


def rollback(cluster: UpgradeCluster) -> None:
    asyncio.run(UpgradeRun(cast("Client", cluster), ApplyOptions(image=IMAGE), lambda _: None).rollback())


def states(cluster: UpgradeCluster) -> dict[str, str]:
    return asyncio.run(run.status(cast("Client", cluster), "kube-system"))


def is_new(cluster: UpgradeCluster) -> bool:
    objects = cluster.objects
    dns = objects["Deployment", "kube-system", "coredns"]["spec"]
    return (
        set(cluster.images("kube-flannel-ds").values()) == {"flannel/flannel:v0.26.0"}
        and set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.36.0"}
        and dns["template"]["spec"]["containers"][0]["image"].endswith(":v1.14.2")
        and objects["ConfigMap", "kube-system", "coredns"]["data"] == {"Corefile": MIGRATED, "own": "kept"}
    )


def changed_fields(cluster: UpgradeCluster) -> set[str]:
    """The objects that differ from those before the upgrade."""
    before, now = make_cluster().content(), cluster.content()
    return {"/".join(key) for key in {*before, *now} if before.get(key) != now.get(key)}


def leftovers(cluster: UpgradeCluster) -> list[str]:
    """Pods, Services and policies of the command itself."""
    owned = {pod["metadata"]["name"] for pod in cluster.objects.values() if pod["metadata"].get("ownerReferences")}
    kinds = ("Pod", "Service", "NetworkPolicy")
    return [name for kind, _, name in cluster.objects if kind in kinds and name not in owned]


def test_components_become_new_and_everything_else_is_kept() -> None:
    cluster = make_cluster()
    lines = apply(cluster, make_plan())
    assert is_new(cluster) and not cluster.surprises and not leftovers(cluster)
    assert changed_fields(cluster) == {
        "ConfigMap/kube-system/coredns", "ConfigMap/kube-system/podwire-upgrade", "DaemonSet/kube-system/kube-proxy",
        "DaemonSet/kube-system/kube-flannel-ds", "Deployment/kube-system/coredns",
    }  # fmt: skip
    for kind, name in (("DaemonSet", "kube-proxy"), ("Deployment", "coredns")):
        old, new = (c.objects[kind, "kube-system", name]["spec"] for c in (make_cluster(), cluster))
        del old["template"]["spec"]["containers"][0]["image"], new["template"]["spec"]["containers"][0]["image"]
        assert old == new
    assert states(cluster) == {"upgrade": "done", "1-flannel": "done", "2-kube-proxy": "done", "3-coredns": "done"}
    taken = 'DaemonSet kube-system/kube-proxy: .spec.template.spec.containers[name="main"].image belongs to kubeadm'
    assert f"{taken}; the field is taken over" in lines


def test_nodes_become_new_in_waves_with_their_configuration_held() -> None:
    cluster = make_cluster()
    apply(cluster, make_plan())
    held = [(node, word) for node, word in cluster.steps if word in ("hold", "release")]
    assert held[:2] == [("b", "hold"), ("b", "release")]
    assert sorted(held[2:]) == [(node, word) for node in ("a", "c") for word in ("hold", "release")]
    tried = [node for node, word in cluster.steps if word == "try"]
    assert tried[:6] == ["b", "a", "c", "b", "a", "c"]


PLANS = [make_plan("flannel", "coredns"), make_plan("kube-proxy", "coredns", exclusive=False)]


@pytest.mark.parametrize("plan", PLANS, ids=["held and copied", "in order"])
def test_a_run_that_is_killed_anywhere_continues(plan: UpgradePlan) -> None:
    whole = make_cluster()
    apply(whole, plan)
    for allowed in range(whole.writes):
        cluster = make_cluster()
        cluster.allowed = allowed
        with pytest.raises(Killed):
            apply(cluster, plan)
        cluster.allowed = None
        apply(cluster, plan)
        assert cluster.content() == whole.content(), allowed
        assert not leftovers(cluster) and not cluster.surprises, allowed


@pytest.mark.parametrize("plan", PLANS, ids=["held and copied", "in order"])
def test_from_wherever_it_was_killed_rollback_is_possible(plan: UpgradePlan) -> None:
    whole = make_cluster()
    apply(whole, plan)
    for allowed in range(whole.writes):
        cluster = make_cluster()
        cluster.allowed = allowed
        with pytest.raises(Killed):
            apply(cluster, plan)
        cluster.allowed = None
        rollback(cluster)
        assert not changed_fields(cluster) and not cluster.surprises, allowed
        for name in ("kube-proxy", "kube-flannel-ds"):
            assert cluster.images(name) == make_cluster().images(name), allowed


def test_a_rollback_that_is_killed_anywhere_continues() -> None:
    whole, plan = make_cluster(), PLANS[0]
    apply(whole, plan)
    before = whole.writes
    rollback(whole)
    for allowed in range(whole.writes - before):
        cluster = make_cluster()
        apply(cluster, plan)
        cluster.allowed = allowed
        with pytest.raises(Killed):
            rollback(cluster)
        cluster.allowed = None
        rollback(cluster)
        assert not changed_fields(cluster) and not cluster.surprises, allowed
        assert cluster.objects["ConfigMap", "kube-system", "coredns"]["data"]["Corefile"] == COREFILE


def test_pods_that_never_get_ready_roll_their_step_back() -> None:
    cluster = make_cluster()
    cluster.broken.add("registry.k8s.io/kube-proxy:v1.36.0")
    with pytest.raises(ClusterError, match="step 2-kube-proxy was rolled back: b: the new pod is not ready"):
        apply(cluster, make_plan())
    assert set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.35.0"}
    assert states(cluster)["1-flannel"] == "done" and states(cluster)["2-kube-proxy"] == "pending"
    cluster.broken.clear()
    apply(cluster)
    assert is_new(cluster)


def test_a_name_server_that_does_not_answer_serves_nobody() -> None:
    cluster = make_cluster()

    def refuse(node: str, arguments: list[str]) -> tuple[bool, str]:
        good, log = answer(node, arguments)
        return good, log.replace('"kind":"server"', '"kind":"server","problem":"no answer"')

    cluster.answers["try"] = refuse
    with pytest.raises(ClusterError, match=r"3-coredns was rolled back: .*the new name server 10.244.0.2"):
        apply(cluster, make_plan(exclusive=False))
    assert "Deployment/kube-system/coredns" not in changed_fields(cluster) and not leftovers(cluster)
    assert cluster.objects["ConfigMap", "kube-system", "coredns"]["data"]["Corefile"] == COREFILE


def test_a_gate_that_does_not_hold_stops_after_the_canary() -> None:
    cluster = make_cluster()

    def refuse(node: str, arguments: list[str]) -> tuple[bool, str]:
        images = cluster.images("kube-proxy")
        good, log = answer(node, arguments)
        broken = images[node].endswith("1.36.0")
        return good, log.replace('"kind":"service"', '"kind":"service","problem":"timed out"') if broken else log

    cluster.answers["try"] = refuse
    with pytest.raises(ClusterError, match="2-kube-proxy: b: service: Service podwire-verify"):
        apply(cluster, make_plan())
    assert set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.35.0"}
    assert [node for node, word in cluster.steps if word == "try"] == ["b", "a", "c", "b"]


def test_kube_proxy_waits_for_the_api_servers() -> None:
    cluster = make_cluster()
    old = {"spec": {"containers": [{"image": "registry.k8s.io/kube-apiserver:v1.35.2"}]}, "status": {}}
    cluster.put(
        "Pod", "kube-system", "kube-apiserver-b", old | {"metadata": {"labels": {"component": "kube-apiserver"}}}
    )
    with pytest.raises(ClusterError, match=r"pod kube-apiserver-b has version v1.35.2, expected 1.36 on every"):
        apply(cluster, make_plan())
    assert set(cluster.images("kube-proxy").values()) == {"registry.k8s.io/kube-proxy:v1.35.0"}


def test_a_plan_that_does_not_fit_changes_nothing() -> None:
    cluster = make_cluster()
    cluster.objects["DaemonSet", "kube-system", "kube-proxy"]["metadata"]["generation"] = 7
    with pytest.raises(ConfigError, match=r"has changed since the plan .generation 7, expected 1.; make a new plan"):
        apply(cluster, make_plan())
    other = identified(msgspec.structs.replace(make_plan(), cluster="elsewhere"))
    with pytest.raises(ConfigError, match="the plan was made for another cluster"):
        apply(make_cluster(), other)
    assert states(cluster) == {"upgrade": "no upgrade was begun"} and cluster.writes == 0


def test_a_corefile_that_was_edited_since_the_plan_is_kept() -> None:
    cluster = make_cluster()
    cluster.objects["ConfigMap", "kube-system", "coredns"]["data"]["Corefile"] += "# mine\n"
    with pytest.raises(
        ConfigError, match=r"coredns: data.Corefile: has changed since the plan was made; make a new plan"
    ):
        apply(cluster, make_plan())
    assert cluster.writes == 0


def test_objects_that_were_deleted_do_not_stop_the_rollback() -> None:
    cluster = make_cluster()
    apply(cluster, make_plan())
    del cluster.objects["DaemonSet", "kube-system", "kube-proxy"]
    rollback(cluster)
    assert changed_fields(cluster) == {"DaemonSet/kube-system/kube-proxy"}
    assert cluster.images("kube-flannel-ds") == make_cluster().images("kube-flannel-ds")


def test_every_node_that_fails_is_named() -> None:
    cluster = make_cluster()
    failed = {"b"}

    def refuse(node: str, _: list[str]) -> tuple[bool, str]:
        first = node not in failed
        failed.add(node)
        return not first, "no space left"

    cluster.answers["hold"] = refuse
    with pytest.raises(ClusterError, match="a: hold failed: no space left; c: hold failed: no space left"):
        apply(cluster, make_plan("flannel"))


class NoFlows:
    """Flows that get no answers."""

    def __init__(self) -> None:
        self.objects: list[ObjectDiff] = []

    def describe(self, objects: Iterable[ObjectDiff]) -> None:
        self.objects += objects

    async def begin(self) -> None:
        raise ClusterError("flows have no answers")

    async def losses(self) -> list[str]:
        return []

    async def end(self) -> None:
        raise ClusterError("the flows cannot be removed")


def test_gates_that_cannot_begin_leave_nothing_behind() -> None:
    cluster = make_cluster()
    flows = NoFlows()
    run_with_flows = UpgradeRun(cast("Client", cluster), ApplyOptions(image=IMAGE), lambda _: None, flows)
    with pytest.raises(ClusterError, match="the flows cannot be removed"):
        asyncio.run(run_with_flows.apply(make_plan()))
    assert not leftovers(cluster) and changed_fields(cluster) == {"ConfigMap/kube-system/podwire-upgrade"}
    assert [change.object for change in flows.objects] == [
        "DaemonSet kube-system/kube-flannel-ds", "DaemonSet kube-system/kube-proxy", "Deployment kube-system/coredns",
    ]  # fmt: skip


def test_fields_of_a_controller_are_refused_unless_forced() -> None:
    cluster = make_cluster()
    spec = cluster.objects["DaemonSet", "kube-system", "kube-proxy"]["spec"]
    cluster.put("DaemonSet", "kube-system", "kube-proxy", {"spec": spec}, "argocd-controller")
    with pytest.raises(ConfigError, match="belongs to argocd-controller, which would write it again; change it there"):
        apply(cluster, make_plan())
    assert cluster.writes == 0
    apply(cluster, make_plan(), take_over=True)
    assert is_new(cluster)


def test_another_plan_is_refused_while_one_is_in_progress() -> None:
    cluster = make_cluster()
    cluster.allowed = 12
    with pytest.raises(Killed):
        apply(cluster, make_plan())
    cluster.allowed = None
    with pytest.raises(ConfigError, match="another upgrade is in progress"):
        apply(cluster, make_plan(exclusive=False))
    assert "the upgrade to 1.36 that is in progress continues" in apply(cluster, make_plan("coredns"), planned_now=True)
    assert is_new(cluster)
    with pytest.raises(ConfigError, match="no upgrade is in progress"):
        apply(make_cluster())


def test_a_step_for_a_person_waits_for_its_gates() -> None:
    cluster = make_cluster()
    by_hand = UpgradeStep(
        id="0-kube-apiserver", component="kube-apiserver", action="manual", gates=("api-servers",), command="kubeadm x"
    )
    plan = make_plan("coredns")
    plan = identified(msgspec.structs.replace(plan, steps=(by_hand, *plan.steps)))
    old = {"spec": {"containers": [{"image": "registry.k8s.io/kube-apiserver:v1.35.2"}]}, "status": {}}
    cluster.put("Pod", "kube-system", "api", old | {"metadata": {"labels": {"component": "kube-apiserver"}}})
    with pytest.raises(ClusterError, match=r"0-kube-apiserver is for a person: kubeadm x; then run this command again"):
        apply(cluster, plan)
    del cluster.objects["Pod", "kube-system", "api"]
    lines = apply(cluster)
    assert "step 0-kube-apiserver is for a person: kubeadm x; its gates hold" in lines
    assert states(cluster) == {"upgrade": "done", "0-kube-apiserver": "done", "3-coredns": "done"}
    rollback(cluster)
    assert not changed_fields(cluster)


def test_a_plan_without_steps_changes_nothing() -> None:
    cluster = make_cluster()
    assert apply(cluster, make_plan("nothing")) == ["there is nothing to upgrade"]
    assert changed_fields(cluster) == {"ConfigMap/kube-system/podwire-upgrade"}


def test_nodes_that_are_not_ready_are_left_to_their_controller() -> None:
    cluster = make_cluster()
    cluster.objects["Node", "", "c"]["status"]["conditions"][0]["status"] = "False"
    lines = apply(cluster, make_plan())
    assert "c: is not Ready; its pod becomes new when the step has ended" in lines
    assert cluster.images("kube-proxy")["a"] == "registry.k8s.io/kube-proxy:v1.36.0"

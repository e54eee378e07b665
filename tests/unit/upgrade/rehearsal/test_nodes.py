"""Which nodes a copy has, and the waves of its plan."""

from tests.cases.upgrade_clusters import changed, inventory

from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets, parse_images
from podwire.upgrade.plan.versions import parse_target
from podwire.upgrade.rehearsal.nodes import choose_nodes
from podwire.upgrade.rehearsal.steps import copied_plan, left_out

TARGETS = Targets(
    version=parse_target("1.36.1", "--to"),
    images=parse_images(["flannel=ghcr.io/flannel-io/flannel:v0.27.0"], "--image"),
)
INVENTORY = inventory("kubeadm")
PLAN = make_plan(INVENTORY, TARGETS)


def test_canary_control_plane_and_zones_come_first() -> None:
    canary = PLAN.steps[0].waves[0].nodes[0]
    chosen = choose_nodes(INVENTORY, PLAN, 4)
    assert [node.name for node in chosen] == ["node-1", "node-2", "node-3", "node-4"]
    assert chosen[0].original == canary and chosen[1].original == "control-1"
    zones = {node.labels["topology.kubernetes.io/zone"] for node in chosen if node.original != "control-1"}
    assert len(zones) == 3
    assert [node.original for node in choose_nodes(INVENTORY, PLAN, 1)] == [canary]
    assert len(choose_nodes(INVENTORY, PLAN, 20)) == len(INVENTORY.nodes)


def test_a_node_keeps_labels_and_taints_but_its_own_name() -> None:
    taints = [
        {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    ]
    tainted = changed("kubeadm", "Node", "control-1", {"spec": {"taints": taints}})
    node = next(node for node in choose_nodes(tainted, PLAN, 20) if node.original == "control-1")
    assert "kubernetes.io/hostname" not in node.labels
    assert node.patch == {
        "metadata": {"labels": dict(node.labels)},
        "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]},
    }


def test_the_copy_gets_the_same_patches_without_steps_by_hand() -> None:
    nodes = choose_nodes(INVENTORY, PLAN, 3)
    copied = copied_plan(PLAN, nodes, "the-copy")
    tried = [step for step in PLAN.steps if step.action != "manual"]
    assert [step.changes for step in copied.steps] == [step.changes for step in tried]
    assert {step.id for step in left_out(PLAN)} == {step.id for step in PLAN.steps} - {step.id for step in copied.steps}
    assert not any("api-servers" in step.gates for step in copied.steps)
    first = copied.steps[0]
    assert first.waves[0].nodes == ("node-1",)
    assert sorted(name for wave in first.waves for name in wave.nodes) == ["node-1", "node-2", "node-3"]
    assert (copied.cluster, copied.nodes) == ("the-copy", 3) and copied.id != PLAN.id
    assert all(component.generation == 0 for component in copied.components)

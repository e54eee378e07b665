"""What the preflight finds in clusters that are not ready for an upgrade."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.cases.upgrade_clusters import VERSIONS, Json, cluster, inventory_of, node, pod

from podwire.upgrade.inventory.inventory import StorageVersions
from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets, parse_images
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.plan.versions import parse_target
from podwire.upgrade.preflight.checks import PreflightSituation, preflight
from podwire.upgrade.preflight.nodefacts import facts_of, pod_of

FLANNEL = ("flannel=ghcr.io/flannel-io/flannel:v0.27.0",)


def findings(
    items: list[Json], files: Mapping[str, tuple[str, ...]] | None = None, kinds: tuple[StorageVersions, ...] = ()
) -> list[UpgradeFinding]:
    """The findings that are more than information."""
    present = msgspec.structs.replace(inventory_of(items, VERSIONS["kubeadm"]), custom_kinds=kinds)
    targets = Targets(version=parse_target("1.36.1", "t"), images=parse_images(FLANNEL, "t"))
    situation = PreflightSituation(inventory=present, plan=make_plan(present, targets), configurations=files or {})
    return [finding for finding in preflight(situation) if finding.severity != "info"]


def with_node(**changes: object) -> list[Json]:
    """The cluster of kubeadm with another node."""
    extra = node("extra", "v1.35.2")
    extra["status"]["conditions"] = changes.pop("conditions", extra["status"]["conditions"])
    extra["spec"] |= changes.pop("spec", {})
    return [*cluster("kubeadm"), extra]


def test_cluster_in_order_has_only_the_notice_of_its_runtime() -> None:
    listed = findings(cluster("kubeadm"))
    assert [finding.field for finding in listed] == ["status.nodeInfo.containerRuntimeVersion"]


READY = {"type": "Ready", "status": "True"}
NODES = {
    "not ready": (with_node(conditions=[{"type": "Ready", "status": "Unknown"}]), "blocker", "node extra is not Ready"),
    "under pressure": (
        with_node(conditions=[READY, {"type": "DiskPressure", "status": "True"}]), "warning",
        "node extra is in trouble",
    ),
    "without a range": (
        [*with_node(), node("other", "v1.35.2", spec={"podCIDRs": ["10.244.9.0/24"]})],
        "warning", "without a pod range",
    ),
    "with the same range": (
        [*cluster("kubeadm"), *(node(name, "v1.35.2", spec={"podCIDRs": ["10.244.9.0/24"]}) for name in "ab")],
        "blocker", "2 nodes have the pod range 10.244.9.0/24",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODES)
def test_node_that_is_not_in_order_is_found(case: str) -> None:
    items, severity, message = NODES[case]
    assert any(f.severity == severity and message in f.message for f in findings(items)), findings(items)


def test_broken_and_mixed_pods_of_a_daemonset_are_found() -> None:
    items = [*cluster("kubeadm"), node("extra", "v1.35.2")]
    labels = {"k8s-app": "kube-proxy"}
    broken = pod(
        "kube-proxy-x", "extra", "registry.k8s.io/kube-proxy:v1.35.1", labels, owner=("DaemonSet", "kube-proxy")
    )
    broken["status"]["conditions"] = []
    texts = [str(finding) for finding in findings([*items, broken])]
    assert any(
        "blocker: DaemonSet kube-system/kube-proxy: status: its pods on node extra are not ready" in t for t in texts
    )
    assert any("its pods have different images: registry.k8s.io/kube-proxy:v1.35.1 on node extra" in t for t in texts)


KINDS = {
    "one version": (StorageVersions(name="a.x", storage="v1", stored_versions=("v1",), served=("v1",)), ""),
    "old objects": (
        StorageVersions(name="a.x", storage="v1", stored_versions=("v1beta1", "v1"), served=("v1", "v1beta1")),
        "warning",
    ),
    "gone version": (
        StorageVersions(name="a.x", storage="v1", stored_versions=("v1alpha1", "v1"), served=("v1",)),
        "blocker",
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_storage_versions_are_checked(case: str) -> None:
    kind, severity = KINDS[case]
    listed = [f.severity for f in findings(cluster("kubeadm"), kinds=(kind,)) if f.field == "status.storedVersions"]
    assert listed == ([severity] if severity else [])


FILES = {
    "own first": (("10-flannel.conflist", "99-loopback.conf"), ""),
    "another first": (("05-cilium.conflist", "10-flannel.conflist"), "warning"),
    "none": ((), "blocker"),
}


@pytest.mark.parametrize("case", FILES)
def test_order_of_configurations_is_checked(case: str) -> None:
    files, severity = FILES[case]
    listed = [f for f in findings(cluster("kubeadm"), {"worker-1": files}) if f.field == "/etc/cni/net.d"]
    assert [f.severity for f in listed] == ([severity] if severity else [])


def test_two_networks_are_ordered_by_the_names_of_their_files() -> None:
    image = {"name": "cilium-agent", "image": "quay.io/cilium/cilium:v1.18.1"}
    cilium = {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "cilium", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [image]}}},
    }  # fmt: skip
    texts = [f.message for f in findings([*cluster("kubeadm"), cilium]) if f.field == "/etc/cni/net.d"]
    assert texts == ["cilium and flannel write configurations; the runtime takes 05-cilium.conflist"]


def test_listing_becomes_configurations_in_order() -> None:
    listing = "99-x.conf\n10-flannel.conflist\nREADME\n05-a.conf.bak\nflannel.json\n"
    facts = facts_of(listing)
    assert facts.configurations == ("10-flannel.conflist", "99-x.conf", "flannel.json")
    assert facts.modules is None, "the node has no files of modules"
    spec = pod_of("a", "6.1.0", "busybox", "/cni")["spec"]
    assert (spec["nodeName"], spec["volumes"][0]["hostPath"]["path"]) == ("a", "/cni")


def listed_by(folder: Path, release: str) -> str:
    """What the script of the pod prints for a node whose modules are in a folder."""
    command = pod_of("a", release, "busybox", str(folder / "net.d"))["spec"]["containers"][0]["command"]
    script = command[2].replace("/lib/modules", str(folder))
    return subprocess.run(["sh", "-c", script, command[3]], capture_output=True, text=True, check=True).stdout


def test_the_pod_lists_modules_built_in_and_as_files(tmp_path: Path) -> None:
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d/10-flannel.conflist").touch()
    (tmp_path / "6.1").mkdir()
    (tmp_path / "6.1/modules.builtin").write_text("kernel/net/netfilter/nf_conntrack.ko\n")
    dependencies = "kernel/net/netfilter/nft_ct.ko.xz: kernel/net/netfilter/nf_conntrack.ko.xz\nkernel/my_nft_nat.ko:\n"
    (tmp_path / "6.1/modules.dep").write_text(dependencies)
    facts = facts_of(listed_by(tmp_path, "6.1"))
    assert facts.configurations == ("10-flannel.conflist",)
    assert facts.modules == frozenset({"nf_conntrack", "nft_ct"})
    assert facts_of(listed_by(tmp_path, "6.2")).modules is None
    assert facts_of(listed_by(tmp_path, "$(touch x)")).modules is None


def test_modules_that_a_node_lacks_for_the_mode_are_named() -> None:
    present = inventory_of(cluster("kubeadm"), VERSIONS["kubeadm"])
    plan = make_plan(present, Targets(version=parse_target("1.36.1", "t")))
    whole = frozenset({"nf_conntrack", "xt_comment", "xt_conntrack", "xt_mark"})
    modules = {"worker-1": whole, "worker-2": whole - {"xt_comment"}}
    situation = PreflightSituation(inventory=present, plan=plan, modules=modules)
    assert [finding.message for finding in preflight(situation) if finding.field == "/lib/modules"] == [
        "mode iptables of kube-proxy needs the kernel module xt_comment, which node worker-2 lacks"
    ]

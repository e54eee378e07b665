"""Whole plans of clusters of several layouts."""

import pytest
from msgspec.structs import replace
from tests.cases.upgrade_clusters import (
    VERSIONS,
    Json,
    changed,
    cluster,
    inventory,
    inventory_of,
    kubeadm_nodes,
    node,
    objects,
    pod,
)

from podwire.errors import ConfigError
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets, parse_images
from podwire.upgrade.plan.text import plan_markdown, plan_text
from podwire.upgrade.plan.values import UpgradePlan, parse_plan, plan_json
from podwire.upgrade.plan.versions import parse_target

FLANNEL = "flannel=ghcr.io/flannel-io/flannel:v0.27.0"


def plan(present: Inventory, target: str, *images: str, **more: object) -> UpgradePlan:
    version = parse_target(target, "--to")
    return make_plan(present, Targets(version=version, images=parse_images(images, "--image"), **more))  # type: ignore[arg-type]


def messages(result: UpgradePlan, severity: str) -> list[str]:
    return [f"{f.object}: {f.field}: {f.message}" for f in result.findings if f.severity == severity]


def images(result: UpgradePlan) -> list[str]:
    return [f"{i.container} {i.before.tag} {i.after}" for step in result.steps for i in step.images]


def test_kubeadm_order_is_network_api_servers_proxy_dns_kubelets() -> None:
    result = plan(inventory("kubeadm"), "1.36.1", FLANNEL)
    assert [step.id for step in result.steps] == [
        "1-flannel",
        "2-kube-apiserver",
        "3-kube-proxy",
        "4-coredns",
        "5-kubelet",
    ]
    assert [step.action for step in result.steps] == ["images", "manual", "images", "images", "manual"]
    assert not result.blocked and messages(result, "warning") == []
    assert images(result) == [
        "kube-flannel v0.26.1 ghcr.io/flannel-io/flannel:v0.27.0",
        "install-cni v0.26.1 ghcr.io/flannel-io/flannel:v0.27.0",
        "kube-proxy v1.35.2 registry.k8s.io/kube-proxy:v1.36.1",
        "coredns v1.13.1 registry.k8s.io/coredns/coredns:v1.14.2",
    ]
    assert result.steps[2].gates[0] == "api-servers"


def test_patches_have_images_alone() -> None:
    result = plan(inventory("kubeadm"), "1.36.1", FLANNEL)
    flannel, _, _, coredns, _ = result.steps
    assert [change.patch for change in coredns.changes] == [
        {
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": "coredns", "image": "registry.k8s.io/coredns/coredns:v1.14.2"}]}
                }
            }
        }
    ]
    pod_spec = flannel.changes[0].patch["spec"]["template"]["spec"]
    assert pod_spec["initContainers"] == [{"name": "install-cni", "image": "ghcr.io/flannel-io/flannel:v0.27.0"}]


def test_changes_of_the_owner_are_reported_as_kept() -> None:
    listed = messages(plan(inventory("kubeadm"), "1.36.1"), "info")
    assert "Deployment kube-system/coredns: spec.replicas: is 4, and 2 in kubeadm's manifest" in listed
    assert any("limits.memory: is 512Mi, and 170Mi" in text for text in listed)
    assert any("tolerations[dedicated]: is not in kubeadm's manifest" in text for text in listed)


def test_waves_cover_the_nodes_of_the_daemonset_once() -> None:
    step = plan(inventory("kubeadm"), "1.36.1").steps[1]
    assert [wave.nodes for wave in step.waves] == [
        ("worker-1",), ("worker-2",), ("worker-3",), ("control-1",), ("control-2",), ("control-3",),
    ]  # fmt: skip


def test_image_of_podwire_is_that_of_all_its_components() -> None:
    items = [node("a", "v1.36.0")]
    for kind, name in (
        ("DaemonSet", "podwire-agent"),
        ("Deployment", "podwire-controller"),
        ("Deployment", "podwire-dns"),
    ):
        container = {"name": "main", "image": "podwire:1.0"}
        pod_spec = {"containers": [container], "initContainers": [{**container, "name": "cni"}]}
        meta = {"name": name, "namespace": "kube-system"}
        items.append({"kind": kind, "metadata": meta, "spec": {"template": {"spec": pod_spec}}})
    present = inventory_of(items, "v1.36.0")
    result = plan(present, "1.36", "podwire=podwire:1.1", "podwire-dns=podwire:1.2")
    assert [step.component for step in result.steps] == ["podwire-agent", "podwire-controller", "podwire-dns"]
    assert images(result)[::2] == ["main 1.0 podwire:1.1", "main 1.0 podwire:1.1", "main 1.0 podwire:1.2"]
    assert all(text.startswith("cni 1.0 podwire:1.") for text in images(result)[1::2])
    with pytest.raises(ConfigError, match="the cluster has no component podwire"):
        plan(inventory("kubeadm"), "1.36", "podwire=podwire:1.1")


@pytest.mark.parametrize("layout", ["k3s", "eks"])
def test_components_of_others_are_steps_by_hand(layout: str) -> None:
    result = plan(inventory(layout), "1.35")
    assert {step.action for step in result.steps} == {"manual"}
    assert all(step.command for step in result.steps)
    assert not any(step.images or step.changes for step in result.steps)


def test_workload_of_an_operator_is_a_step_by_hand() -> None:
    owner = {"apiVersion": "operator.tigera.io/v1", "kind": "Installation", "name": "default", "controller": True}
    container = {"name": "calico-node", "image": "quay.io/calico/node:v3.30.0"}
    meta = {"name": "calico-node", "namespace": "calico-system", "ownerReferences": [owner]}
    daemonset = {"kind": "DaemonSet", "metadata": meta, "spec": {"template": {"spec": {"containers": [container]}}}}
    result = plan(inventory_of([daemonset], "v1.36.0"), "1.36", "calico-node=quay.io/calico/node:v3.31.0")
    (step,) = result.steps
    assert (step.action, step.changes) == ("manual", ())
    assert step.command == (
        "change the image by Installation default, whose controller makes DaemonSet calico-system/calico-node"
    )


def test_agents_of_antrea_follow_their_controller_closely() -> None:
    items = []
    for kind, name in (("Deployment", "antrea-controller"), ("DaemonSet", "antrea-agent")):
        container = {"name": name, "image": f"antrea/{name}-ubuntu:v2.0.0"}
        meta = {"name": name, "namespace": "kube-system"}
        items.append({"kind": kind, "metadata": meta, "spec": {"template": {"spec": {"containers": [container]}}}})
    present = inventory_of(items, "v1.36.0")
    near, far = (
        plan(present, "1.36", f"antrea-controller=antrea/antrea-controller-ubuntu:{v}") for v in ("v2.4.0", "v2.5.0")
    )
    assert (messages(near, "blocker"), len(messages(far, "blocker"))) == ([], 1)
    assert "antrea-agent 2.0.0 is 5 minor versions older than antrea-controller 2.5.0" in messages(far, "blocker")[0]
    assert [
        step.component
        for step in plan(
            present,
            "1.36",
            "antrea-agent=antrea/antrea-agent-ubuntu:v2.1.0",
            "antrea-controller=antrea/antrea-controller-ubuntu:v2.1.0",
        ).steps
    ] == ["antrea-controller", "antrea-agent"]


def test_release_of_helm_is_named() -> None:
    meta = {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "flannel"}}
    result = plan(changed("kubeadm", "DaemonSet", "kube-flannel-ds", {"metadata": meta}), "1.36.1", FLANNEL)
    assert any("belongs to the Helm release flannel" in text for text in messages(result, "info"))


def test_charts_of_the_server_are_named() -> None:
    present = replace(inventory("k3s"), version="v1.34.2+rke2r1", helm_charts=("kube-system/rke2-coredns", "shop/web"))
    listed = [text for text in messages(plan(present, "1.35"), "info") if text.startswith("HelmChart")]
    assert listed == [
        "HelmChart kube-system/rke2-coredns: : is a chart that the server installs, with the version of the server"
    ]


def test_nothing_is_left_to_do_for_the_present_version() -> None:
    result = plan(inventory("kubeadm"), "1.35")
    assert result.steps == ()
    assert "everything has its target version" in plan_text(result)


def test_kube_proxy_takes_the_patch_release_of_upgraded_servers() -> None:
    items = [*objects("kubeadm"), *kubeadm_nodes(version="v1.36.3")]
    result = plan(inventory_of(items, "v1.36.3"), "1.36")
    assert "kube-proxy v1.35.2 registry.k8s.io/kube-proxy:v1.36.3" in images(result)


def test_oldest_server_of_all_decides() -> None:
    items = [*cluster("kubeadm"), *_server("control-4", "v1.34.9")]
    result = plan(inventory_of(items, VERSIONS["kubeadm"]), "1.36")
    assert result.from_version == "1.34.9"
    assert any("skips 1 minor version" in text for text in messages(result, "blocker"))
    assert any("kube-proxy is newer than the oldest API server" in text for text in messages(result, "blocker"))


def _server(on: str, version: str) -> list[Json]:
    image = f"registry.k8s.io/kube-apiserver:{version}"
    return [pod(f"kube-apiserver-{on}", on, image, {"component": "kube-apiserver"})]


def test_images_go_to_the_mirror_and_are_pinned() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    result = plan(
        inventory("kubeadm"), "1.36.1",
        mirrors={"registry.k8s.io": "mirror.example/k8s"}, digests={"mirror.example/k8s/kube-proxy:v1.36.1": digest},
    )  # fmt: skip
    assert images(result) == [
        f"kube-proxy v1.35.2 mirror.example/k8s/kube-proxy:v1.36.1@{digest}",
        "coredns v1.13.1 mirror.example/k8s/coredns/coredns:v1.14.2",
    ]


def test_default_mode_is_pinned_before_the_daemonset_changes() -> None:
    items = [*objects("kubeadm"), *kubeadm_nodes(version="v1.39.0")]
    step = next(s for s in plan(inventory_of(items, "v1.39.0"), "1.40.0").steps if s.component == "kube-proxy")
    assert [change.kind for change in step.changes] == ["ConfigMap", "DaemonSet"]


CUSTOM_COREDNS = {
    "spec": {"template": {"spec": {"containers": [{"name": "coredns", "image": "dns.example/coredns:v1.13.1-corp.4"}]}}}
}


def test_custom_build_of_coredns_stays_until_it_is_named() -> None:
    present = changed("kubeadm", "Deployment", "coredns", CUSTOM_COREDNS)
    result = plan(present, "1.36.1")
    assert not any(text.startswith("coredns") for text in images(result))
    assert any("is a custom build; the plan leaves the image" in text for text in messages(result, "warning"))
    named = plan(present, "1.36.1", "coredns=dns.example/coredns:v1.14.2-corp.1")
    assert "coredns v1.13.1-corp.4 dns.example/coredns:v1.14.2-corp.1" in images(named)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("calico-node=quay.io/calico/node:v3.30", "calico-node: the cluster has no component calico-node"),
        ("flannel/x=a:1", "flannel/x: DaemonSet kube-flannel/kube-flannel-ds has no container x"),
    ],
)
def test_image_of_an_absent_component_is_refused(image: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(inventory("kubeadm"), "1.36", image)


def test_cluster_without_a_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="/version: gitVersion: expected a version such as"):
        plan(inventory_of([], "none"), "1.36")


def test_retired_parts_are_named() -> None:
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "old", "namespace": "shop"},
        "spec": {"externalIPs": ["192.0.2.9"]},
    }  # fmt: skip
    nginx = {"name": "controller", "image": "registry.k8s.io/ingress-nginx/controller:v1.12.1"}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gate", "namespace": "ingress"},
        "spec": {"template": {"spec": {"containers": [nginx]}}},
    }  # fmt: skip
    dns = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "d", "image": "registry.k8s.io/dns/kubedns:1.14"}]}}},
    }  # fmt: skip
    present = inventory_of([*cluster("kubeadm"), service, deployment, dns], VERSIONS["kubeadm"])
    listed = messages(plan(present, "1.36"), "warning")
    retired = [text for text in listed if any(word in text for word in ("deprecated", "retired", "nginx"))]
    assert [text.partition(":")[0] for text in retired] == [
        "Service shop/old", "Deployment ingress/gate", "Deployment kube-system/kube-dns",
    ]  # fmt: skip
    items = [*objects("kubeadm"), *kubeadm_nodes(version="v1.39.0"), service]
    assert any(
        "off by default in 1.40" in text for text in messages(plan(inventory_of(items, "v1.39.0"), "1.40"), "blocker")
    )


def test_same_cluster_gives_the_same_plan() -> None:
    first, second = (plan(inventory("kubeadm"), "1.36.1") for _ in range(2))
    assert first == second
    assert parse_plan(plan_json(first), "plan.json") == first


@pytest.mark.parametrize("layout", VERSIONS)
def test_text_and_markdown_name_steps_and_findings(layout: str) -> None:
    result = plan(inventory(layout), "1.36" if layout == "kubeadm" else "1.35")
    for text in (plan_text(result), plan_markdown(result)):
        assert all(step.id in text for step in result.steps)
        assert all(finding.message.partition("|")[0] in text for finding in result.findings)
    assert plan_markdown(result).count("\n### ") == len(result.steps)

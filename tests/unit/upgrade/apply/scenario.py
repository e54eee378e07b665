"""A cluster before an upgrade, and the plan of the upgrade: a CNI, kube-proxy and CoreDNS of others."""

from typing import Any

from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.upgrade.plan.values import (
    Component,
    ImageChange,
    PlannedChange,
    UpgradePlan,
    UpgradeStep,
    Wave,
    identified,
    parse_image,
    text_digest,
)

NODES = ("a", "b", "c")
COREFILE = ".:53 {\n    kubernetes cluster.local {\n        upstream\n    }\n}\n"
MIGRATED = ".:53 {\n    kubernetes cluster.local {\n    }\n}\n"
WAVES = (Wave(nodes=("b",)), Wave(nodes=("a", "c")))


def workload(image: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "resources": {"limits": {"memory": "170Mi"}}}
    return {"template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], **spec}}}


def make_cluster() -> UpgradeCluster:
    cluster = UpgradeCluster(*NODES)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    conf = {"name": "cni", "hostPath": {"path": "/etc/cni/net.d"}}
    flannel = workload("docker.io/flannel/flannel:v0.25.0", volumes=[conf])
    cluster.put("DaemonSet", "kube-system", "kube-flannel-ds", {"spec": {**flannel, "updateStrategy": rolling}})
    proxy = workload("registry.k8s.io/kube-proxy:v1.35.0")
    cluster.put("DaemonSet", "kube-system", "kube-proxy", {"spec": {**proxy, "updateStrategy": rolling}}, "kubeadm")
    volume = {"name": "config-volume", "configMap": {"name": "coredns", "items": [{"key": "Corefile", "path": "x"}]}}
    dns = workload("registry.k8s.io/coredns/coredns:v1.6.0", volumes=[volume])
    dns["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 53, "protocol": "UDP"}]
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}
    cluster.put("Deployment", "kube-system", "coredns", {"spec": {**dns, "replicas": 3, "strategy": strategy}})
    cluster.put("ConfigMap", "kube-system", "coredns", {"data": {"Corefile": COREFILE, "own": "kept"}})
    cluster.surprises.clear()
    return cluster


def make_plan(*components: str, exclusive: bool = True) -> UpgradePlan:
    """The plan for some components, or for all."""
    corefile = PlannedChange(
        api_version="v1", kind="ConfigMap", namespace="kube-system", name="coredns",
        patch={"data": {"Corefile": MIGRATED}}, exclusive=exclusive, digests={"Corefile": text_digest(COREFILE)},
    )  # fmt: skip
    every = (
        step("1-flannel", "DaemonSet", "kube-flannel-ds", "flannel/flannel:v0.26.0"),
        step("2-kube-proxy", "DaemonSet", "kube-proxy", "registry.k8s.io/kube-proxy:v1.36.0"),
        step("3-coredns", "Deployment", "coredns", "registry.k8s.io/coredns/coredns:v1.14.2", corefile),
    )
    steps = tuple(entry for entry in every if not components or entry.component in components)
    entries = tuple(
        Component(name=s.component, kind="DaemonSet" if s.scope == "nodes" else "Deployment", namespace="kube-system",
                  workload=s.changes[-1].name, generation=1)
        for s in steps
    )  # fmt: skip
    plan = UpgradePlan(from_version="1.35.0", to_version="1.36", nodes=3, components=entries, steps=steps)
    return identified(plan)


def step(step_id: str, kind: str, name: str, image: str, *before: PlannedChange) -> UpgradeStep:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
    change = PlannedChange(api_version="apps/v1", kind=kind, namespace="kube-system", name=name, patch=patch)
    reference = parse_image(image, "test")
    by_node = kind == "DaemonSet"
    return UpgradeStep(
        id=step_id,
        component=step_id.partition("-")[2],
        action="images",
        scope="nodes" if by_node else "whole",
        images=(ImageChange(container="main", before=reference, after=reference),),
        changes=(*before, change),
        gates=("api-servers", "rollout", "node-ready", "pods", "services", "dns", "flows"),
        waves=WAVES if by_node else (),
    )

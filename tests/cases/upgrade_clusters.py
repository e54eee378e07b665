"""Clusters of several layouts for the tests of upgrades: their objects, and the inventory that they make."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.model.service import Service
from podwire.model.workload import PodDisruptionBudget
from podwire.upgrade.inventory.inventory import Inventory, InventoryNode, InventoryPod

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "upgrade"
ZONES = ("zone-a", "zone-b", "zone-c")
VERSIONS = {"kubeadm": "v1.35.2", "k3s": "v1.34.2+k3s1", "eks": "v1.34.1-eks-3025e55"}
"""The version of the API server and of the kubelets of each layout."""


def objects(layout: str) -> list[Json]:
    """The objects of a layout without nodes and pods."""
    return [item for item in yaml.load_all((FOLDER / f"{layout}.yaml").read_text(), Loader=yaml.CSafeLoader) if item]


def node(name: str, version: str, *, zone: str = "", control_plane: bool = False, **more: Any) -> Json:
    """A ready Node."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **more.pop("labels", {})}
    if zone:
        labels["topology.kubernetes.io/zone"] = zone
    if control_plane:
        labels["node-role.kubernetes.io/control-plane"] = ""
    info = {
        "kernelVersion": "6.1.0-18-amd64", "osImage": "Debian GNU/Linux 12 (bookworm)", "architecture": "amd64",
        "containerRuntimeVersion": "containerd://1.7.27", "kubeletVersion": version, "operatingSystem": "linux",
    }  # fmt: skip
    info |= more.pop("info", {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": more.pop("spec", {}),
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info},
    }


def pod(name: str, on: str, image: str, labels: Mapping[str, str], **more: Any) -> Json:
    """A ready pod of kube-system, or of ``namespace``."""
    meta: Json = {"name": name, "namespace": more.get("namespace", "kube-system"), "labels": dict(labels)}
    if "owner" in more:
        kind, owner = more["owner"]
        meta["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": f"uid-{owner}"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": on, "containers": [{"name": "main", "image": image}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def kubeadm_nodes(control_planes: int = 3, workers: int = 3, version: str = "v1.35.2") -> list[Json]:
    """Nodes in three zones, with the pods of API servers, kube-proxy, Flannel and CoreDNS."""
    names = [(f"control-{n}", True) for n in range(1, control_planes + 1)]
    names += [(f"worker-{n}", False) for n in range(1, workers + 1)]
    made = []
    for number, (name, control_plane) in enumerate(names):
        made.append(node(name, version, zone=ZONES[number % 3], control_plane=control_plane))
        made.append(
            pod(
                f"kube-proxy-{name}", name, f"registry.k8s.io/kube-proxy:{version}", {"k8s-app": "kube-proxy"},
                owner=("DaemonSet", "kube-proxy"),
            )
        )  # fmt: skip
        made.append(
            pod(
                f"kube-flannel-{name}", name, "ghcr.io/flannel-io/flannel:v0.26.1", {"app": "flannel"},
                namespace="kube-flannel", owner=("DaemonSet", "kube-flannel-ds"),
            )
        )  # fmt: skip
        if control_plane:
            image = f"registry.k8s.io/kube-apiserver:{version}"
            made.append(pod(f"kube-apiserver-{name}", name, image, {"component": "kube-apiserver"}))
    for number, (name, _) in enumerate(names[-2:]):
        image = "registry.k8s.io/coredns/coredns:v1.13.1"
        owner = ("ReplicaSet", "coredns-1")
        made.append(pod(f"coredns-{number}", name, image, {"k8s-app": "kube-dns"}, owner=owner))
    return made


def k3s_nodes() -> list[Json]:
    """A server and an agent of k3s."""
    server = node("server-1", VERSIONS["k3s"], control_plane=True)
    return [server, node("agent-1", VERSIONS["k3s"])]


def eks_nodes() -> list[Json]:
    """Three nodes of a managed group."""
    labels = {"eks.amazonaws.com/nodegroup": "main"}
    made = []
    for number, zone in enumerate(ZONES, start=1):
        provider = {"providerID": f"aws:///{zone}/i-00000000000000{number:03}"}
        made.append(node(f"node-{number}", VERSIONS["eks"], zone=zone, labels=labels, spec=provider))
    return made


NODES = {"kubeadm": kubeadm_nodes, "k3s": k3s_nodes, "eks": eks_nodes}


def cluster(layout: str) -> list[Json]:
    """All objects of a layout."""
    return [*objects(layout), *NODES[layout]()]


def inventory_of(items: Iterable[Json], version: str) -> Inventory:
    """The inventory that reading these objects makes."""
    kinds: dict[str, list[Json]] = {}
    listed = list(items)
    nodes = sum(item["kind"] == "Node" for item in listed)
    for item in listed:
        kinds.setdefault(item["kind"], []).append(_with_status(item, nodes))

    def of(kind: str, form: Any) -> Any:
        return msgspec.convert(kinds.get(kind, []), tuple[form, ...])

    config_maps = kinds.get("ConfigMap", [])
    return Inventory(
        cluster="6f2d6a4c-0000-4000-8000-000000000001",
        version=version,
        nodes=of("Node", InventoryNode),
        pods=of("Pod", InventoryPod),
        daemonsets=tuple(kinds.get("DaemonSet", ())),
        deployments=tuple(kinds.get("Deployment", ())),
        config_maps={f"{c['metadata']['namespace']}/{c['metadata']['name']}": c["data"] for c in config_maps},
        services=of("Service", Service),
        budgets=of("PodDisruptionBudget", PodDisruptionBudget),
        autoscalers=tuple(kinds.get("HorizontalPodAutoscaler", ())),
    )


def inventory(layout: str) -> Inventory:
    """The inventory of a layout."""
    return inventory_of(cluster(layout), VERSIONS[layout])


def changed(layout: str, kind: str, name: str, patch: Mapping[str, Any]) -> Inventory:
    """The inventory of a layout in which one object has other fields; a list replaces a list."""
    items = cluster(layout)
    target = next(item for item in items if item["kind"] == kind and item["metadata"]["name"] == name)
    _merge(target, patch)
    return inventory_of(items, VERSIONS[layout])


def _merge(target: Json, patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def _with_status(item: Json, nodes: int) -> Json:
    """A workload all of whose pods are ready."""
    if "status" in item or item["kind"] not in ("DaemonSet", "Deployment", "PodDisruptionBudget"):
        return item
    if item["kind"] == "PodDisruptionBudget":
        return {**item, "status": {"disruptionsAllowed": 1}}
    count = item["spec"].get("replicas", nodes)
    ready = {"desiredNumberScheduled": count, "numberReady": count, "readyReplicas": count}
    return {**item, "metadata": {**item["metadata"], "generation": 1}, "status": ready}

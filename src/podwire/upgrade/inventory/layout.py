"""Recognizes the layout of a cluster: what installed its network, and what upgrades it. Pure.

The version is that of the API server or of a kubelet.

| layout | sign | kube-proxy | CoreDNS |
|---|---|---|---|
| k3s | the version has +k3s | in the k3s program | a manifest that the k3s server applies |
| rke2 | the version has +rke2 | a static pod | a HelmChart |
| eks, gke | the version has -eks- or -gke. | the cloud's | the cloud's |
| aks | nodes have the label kubernetes.azure.com/cluster | the cloud's | the cloud's |
| kubeadm | ConfigMap kube-system/kubeadm-config | DaemonSet | Deployment |
| podwire | the version has +podwire: a local cluster | none | DNS of podwire |
| plain | none of these | unknown | unknown |
"""

from collections.abc import Mapping

from podwire.model.meta import Fact
from podwire.upgrade.inventory.inventory import SYSTEM, Inventory, Json
from podwire.upgrade.plan.values import Owner


class ClusterLayout(Fact, frozen=True, kw_only=True):
    """A layout and how its parts are upgraded."""

    name: str
    owner: Owner
    """The side that upgrades the components that came with the cluster."""
    upgrade: str
    """How the API servers are upgraded; ``{version}`` stands for the target."""
    differences: tuple[str, ...] = ()
    """What differs from a cluster of kubeadm, one sentence each."""


LAYOUTS: Mapping[str, ClusterLayout] = {
    "kubeadm": ClusterLayout(
        name="kubeadm",
        owner="cluster",
        upgrade=(
            "on the first control-plane node: kubeadm upgrade apply v{version} --skip-phases=addon; "
            "on the others: kubeadm upgrade node --skip-phases=addon"
        ),
    ),
    "k3s": ClusterLayout(
        name="k3s",
        owner="distribution",
        upgrade="install k3s v{version}+k3s1 on the servers one after the other, then on the agents",
        differences=(
            "kube-proxy runs inside of the k3s program and has no pods",
            "Flannel runs inside of the k3s program unless another network is installed",
            "the k3s server applies the manifest of CoreDNS again whenever it starts; changes belong in ConfigMap "
            "kube-system/coredns-custom or a HelmChartConfig",
        ),
    ),
    "rke2": ClusterLayout(
        name="rke2",
        owner="distribution",
        upgrade="install RKE2 v{version}+rke2r1 on the servers one after the other, then on the agents",
        differences=(
            "kube-proxy is a static pod that RKE2 writes",
            "CoreDNS and the network are HelmCharts; changes belong in a HelmChartConfig",
        ),
    ),
    "eks": ClusterLayout(
        name="eks",
        owner="cloud",
        upgrade="aws eks update-cluster-version --name CLUSTER --kubernetes-version {minor}",
        differences=(
            "the API servers have no pods; only the answer of /version tells their version",
            "add-ons that EKS manages are set back by EKS when they are changed by others",
        ),
    ),
    "gke": ClusterLayout(
        name="gke",
        owner="cloud",
        upgrade="gcloud container clusters upgrade CLUSTER --master --cluster-version {minor}",
        differences=(
            "the API servers have no pods; only the answer of /version tells their version",
            "kube-proxy is a static pod of the node image, and cluster DNS is kube-dns or Cloud DNS",
        ),
    ),
    "aks": ClusterLayout(
        name="aks",
        owner="cloud",
        upgrade="az aks upgrade --name CLUSTER --resource-group GROUP --control-plane-only -k {minor}",
        differences=(
            "the API servers have no pods; only the answer of /version tells their version",
            "AKS applies CoreDNS and kube-proxy again; changes of DNS belong in ConfigMap kube-system/coredns-custom",
        ),
    ),
    "podwire": ClusterLayout(
        name="podwire",
        owner="cluster",
        upgrade="podwire upgrade local apply --to PATH takes the cluster to another build of podwire",
        differences=("the API server is a process of the machine and has no pod",),
    ),
    "plain": ClusterLayout(name="plain", owner="cluster", upgrade="upgrade every API server to v{version}"),
}

ADDON_LABELS: Mapping[str, str] = {
    "eks.amazonaws.com/component": "eks",
    "kubernetes.azure.com/managedby": "aks",
    "addonmanager.kubernetes.io/mode": "",
    "components.gke.io/component-name": "gke",
}
"""Labels of what a cloud manages, and the cloud; empty: any cloud, and clusters that run the addon manager."""
DISTRIBUTION_ANNOTATION = "objectset.rio.cattle.io/owner-name"
"""The annotation of objects that the server of k3s or RKE2 applies."""
HELM_ANNOTATION = "helmcharts.helm.cattle.io/name"


def recognize(inventory: Inventory) -> ClusterLayout:
    """The layout."""
    versions = {inventory.version, *(node.status.node_info.kubelet_version for node in inventory.nodes)}
    for mark, name in (("+k3s", "k3s"), ("+rke2", "rke2"), ("-eks-", "eks"), ("-gke.", "gke")):
        if any(mark in version for version in versions):
            return LAYOUTS[name]
    if any("kubernetes.azure.com/cluster" in node.metadata.labels for node in inventory.nodes):
        return LAYOUTS["aks"]
    if f"{SYSTEM}/kubeadm-config" in inventory.config_maps:
        return LAYOUTS["kubeadm"]
    return LAYOUTS["podwire" if "+podwire" in inventory.version else "plain"]


def object_of(workload: Json) -> str:
    """The object whose controller makes a workload, as ``Installation default``; empty: none."""
    for owner in (workload.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{owner.get('kind', '')} {owner.get('name', '')}"
    return ""


def owner_of(workload: Json, layout: ClusterLayout) -> Owner:
    """The side that upgrades a workload: an operator, the cloud or distribution by their labels, else the cluster."""
    if object_of(workload):
        return "operator"
    meta = workload.get("metadata") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    if layout.owner == "cloud" and any(label in labels for label in ADDON_LABELS):
        return "cloud"
    marks = (DISTRIBUTION_ANNOTATION, HELM_ANNOTATION)
    if layout.owner == "distribution" and any(mark in annotations or mark in labels for mark in marks):
        return "distribution"
    return "cluster"

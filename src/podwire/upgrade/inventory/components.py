"""The components of a cluster's network: which objects they are, by name and by image. Pure.

A DaemonSet or Deployment is known by its name, or else by the repository of an image, since charts rename workloads.
Static pods of the API server and of kube-proxy count by the node on which they run.
"""

from collections.abc import Iterator, Mapping

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.inventory.inventory import SYSTEM, Inventory, InventoryPod, Json, containers_of
from podwire.upgrade.inventory.layout import ClusterLayout, object_of, owner_of
from podwire.upgrade.plan.values import (
    Component,
    ComponentKind,
    ContainerImage,
    ImageReference,
    UpgradeFinding,
    parse_image,
)
from podwire.upgrade.plan.versions import Version, parse_version

NETWORKS: Mapping[str, tuple[str, ...]] = {
    "podwire": ("podwire-agent",),
    "flannel": ("flannel",),
    "calico": ("calico-node", "calico-typha", "calico-kube-controllers"),
    "canal": ("canal",),
    "cilium": ("cilium", "cilium-operator", "cilium-envoy"),
    "weave": ("weave-net",),
    "antrea": ("antrea-controller", "antrea-agent"),
    "kindnet": ("kindnet",),
    "aws-node": ("aws-node",),
    "azure-cni": ("azure-cns", "azure-npm"),
    "kube-router": ("kube-router",),
    "ovn-kubernetes": ("ovnkube-node",),
    "gke-dataplane": ("anetd", "netd"),
}
"""The networks of pods, each with its components in the order in which they are upgraded."""

PARTS_OF_PODWIRE = ("podwire-agent", "podwire-controller", "podwire-dns", "podwire-gateway")
"""The components of podwire in the order in which they are upgraded."""

NETWORK_COMPONENTS: Mapping[str, str] = {
    component: network for network, components in NETWORKS.items() for component in components
}
"""The network of a component."""

_WORKLOADS: Mapping[str, str] = {
    **{component: component for components in NETWORKS.values() for component in components},
    **{component: component for component in PARTS_OF_PODWIRE},
    "rke2-canal": "canal", "rke2-ingress-nginx-controller": "ingress-nginx",
    "kube-flannel-ds": "flannel", "kube-flannel": "flannel", "ingress-nginx-controller": "ingress-nginx",
    "kube-proxy": "kube-proxy", "coredns": "coredns", "rke2-coredns-rke2-coredns": "coredns", "kube-dns": "kube-dns",
    "node-local-dns": "node-local-dns", "cluster-proportional-autoscaler": "dns-autoscaler",
    "dns-autoscaler": "dns-autoscaler", "kube-dns-autoscaler": "dns-autoscaler", "coredns-autoscaler": "dns-autoscaler",
}  # fmt: skip
"""Components by the name of a DaemonSet or Deployment."""

_REPOSITORIES: Mapping[str, str] = {
    "flannel/flannel": "flannel", "flannelcni/flannel": "flannel", "mirrored-flannel-flannel": "flannel",
    "calico/node": "calico-node", "calico/typha": "calico-typha", "calico/kube-controllers": "calico-kube-controllers",
    "cilium/cilium": "cilium", "cilium/operator-generic": "cilium-operator", "weaveworks/weave-kube": "weave-net",
    "antrea/antrea-agent-ubuntu": "antrea-agent", "antrea/antrea-controller-ubuntu": "antrea-controller",
    "kindest/kindnetd": "kindnet", "amazon-k8s-cni": "aws-node", "cloudnativelabs/kube-router": "kube-router",
    "coredns/coredns": "coredns", "mirrored-coredns-coredns": "coredns", "eks/coredns": "coredns",
    "kubernetes/coredns": "coredns", "hardened-coredns": "coredns", "coredns": "coredns",
    "ingress-nginx/controller": "ingress-nginx", "rancher/nginx-ingress-controller": "ingress-nginx",
    "dns/k8s-dns-node-cache": "node-local-dns",
}  # fmt: skip
"""Components by the end of the repository of an image of a main container."""

_STATIC = ("kube-apiserver", "kube-proxy")
"""The values of the label ``component`` of the static pods that matter."""


class Components(Fact, frozen=True, kw_only=True):
    """The components, and what is wrong with them."""

    components: tuple[Component, ...]
    network: str = ""
    """The key of :data:`NETWORKS`; empty: no known network."""
    networks: tuple[str, ...] = ()
    """All networks that run; more than one is a fault unless one of them is policy only."""
    findings: tuple[UpgradeFinding, ...] = ()

    def component(self, name: str) -> Component | None:
        """The component of that name; None when it is not there."""
        return next((component for component in self.components if component.name == name), None)


def find_components(inventory: Inventory, layout: ClusterLayout) -> Components:
    """All components of the cluster, those of networks first."""
    findings: list[UpgradeFinding] = []
    components = []
    for kind, workloads in (("DaemonSet", inventory.daemonsets), ("Deployment", inventory.deployments)):
        for workload in workloads:
            name = _name(workload)
            if name:
                components.append(_component(name, kind, workload, layout, findings))  # type: ignore[arg-type]
    components += _static_components(inventory, layout, findings)
    networks = [name for name in NETWORKS if any(NETWORK_COMPONENTS.get(c.name) == name for c in components)]
    if not networks and layout.name == "k3s":
        networks = ["flannel"]
    return Components(
        components=tuple(sorted(components, key=_order)),
        network=networks[0] if networks else "",
        networks=tuple(networks),
        findings=tuple(findings),
    )


def _order(component: Component) -> tuple[int, str]:
    names = [name for components in NETWORKS.values() for name in components]
    names += [*PARTS_OF_PODWIRE, "kube-apiserver", "kube-proxy", "coredns"]
    return names.index(component.name) if component.name in names else len(names), component.title


def _name(workload: Json) -> str:
    """The component that a workload is; empty when it is none."""
    name = str((workload.get("metadata") or {}).get("name", ""))
    if name in _WORKLOADS:
        return _WORKLOADS[name]
    for container, init in containers_of(workload):
        repository = str(container.get("image", "")).partition("@")[0]
        repository = repository[: repository.rindex(":")] if ":" in repository.rpartition("/")[2] else repository
        for suffix, component in _REPOSITORIES.items():
            if not init and (repository == suffix or repository.endswith(f"/{suffix}")):
                return component
    return ""


def _component(
    name: str, kind: ComponentKind, workload: Json, layout: ClusterLayout, findings: list[UpgradeFinding]
) -> Component:
    meta, spec, status = (workload.get(key) or {} for key in ("metadata", "spec", "status"))
    namespace, workload_name = str(meta.get("namespace", "")), str(meta.get("name", ""))
    images = tuple(_images(workload, f"{kind} {namespace}/{workload_name}", findings))
    strategy = spec.get("updateStrategy" if kind == "DaemonSet" else "strategy") or {}
    daemonset = kind == "DaemonSet"
    return Component(
        name=name,
        kind=kind,
        namespace=namespace,
        workload=workload_name,
        images=images,
        version=version_of(images[0].image) if images else "",
        replicas=int(status.get("desiredNumberScheduled") or 0) if daemonset else int(spec.get("replicas") or 0),
        ready=int(status.get("numberReady" if daemonset else "readyReplicas") or 0),
        owner=owner_of(workload, layout),
        owned_by=object_of(workload),
        generation=int(meta.get("generation") or 0),
        update_strategy=str(strategy.get("type") or "RollingUpdate"),
        max_unavailable=str((strategy.get("rollingUpdate") or {}).get("maxUnavailable", "")),
    )


def version_of(image: ImageReference) -> str:
    """The version in the tag of an image as ``1.12.1``, with its addition; empty when the tag is no version."""
    version = parse_version(image.tag)
    return str(version) if version is not None else ""


def _images(workload: Json, title: str, findings: list[UpgradeFinding]) -> Iterator[ContainerImage]:
    for container, init in containers_of(workload):
        name = str(container.get("name", ""))
        list_name = "initContainers" if init else "containers"
        path = f"spec.template.spec.{list_name}[{name}].image"
        try:
            image = parse_image(str(container.get("image", "")), title, path)
        except ConfigError as failure:
            remedy = "correct the image; the container is left out of the plan"
            text = failure.problem
            findings.append(UpgradeFinding(severity="warning", object=title, field=path, message=text, remedy=remedy))
            continue
        yield ContainerImage(container=name, image=image, init=init)


def api_servers(inventory: Inventory) -> tuple[tuple[str, Version | None], ...]:
    """The API servers with their versions: pods, the addresses that were asked, and the one that answered."""
    servers: list[tuple[str, Version | None]] = [
        (f"Pod {SYSTEM}/{pod.metadata.name}", _pod_version(pod))
        for pod in inventory.pods_with(SYSTEM, "component", "kube-apiserver")
    ]
    servers += [(f"API server {address}", parse_version(text)) for address, text in sorted(inventory.servers.items())]
    return (*servers, ("/version", parse_version(inventory.version)))


def _pod_version(pod: InventoryPod) -> Version | None:
    for container in pod.spec.containers:
        tag = container.image.partition("@")[0].rpartition(":")[2]
        return parse_version(tag)
    return None


def _static_components(
    inventory: Inventory, layout: ClusterLayout, findings: list[UpgradeFinding]
) -> Iterator[Component]:
    for name in _STATIC:
        pods = [pod for pod in inventory.pods_with(SYSTEM, "component", name) if not _owned_by_daemonset(pod)]
        if not pods:
            continue
        images = []
        for container in pods[0].spec.containers:
            title = f"Pod {SYSTEM}/{pods[0].metadata.name}"
            try:
                reference = parse_image(container.image, title)
            except ConfigError as failure:
                findings.append(UpgradeFinding(severity="warning", object=title, field="spec", message=failure.problem))
                continue
            images.append(ContainerImage(container=container.name, image=reference))
        versions = [version for pod in pods if (version := _pod_version(pod)) is not None]
        oldest = min(versions, key=lambda version: version.release, default=None)
        yield Component(
            name=name,
            kind="StaticPod",
            namespace=SYSTEM,
            workload=name,
            images=tuple(images),
            version=str(oldest) if oldest is not None else "",
            replicas=len(pods),
            ready=sum(pod.ready for pod in pods),
            owner="cluster" if layout.owner == "cluster" else layout.owner,
        )


def _owned_by_daemonset(pod: InventoryPod) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)

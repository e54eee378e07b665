"""Which objects of a cluster belong to its network, and how they look in a backup. Pure.

A backup has the workloads of the network, and what they refer to: ConfigMaps, ServiceAccounts with their roles and
bindings, autoscalers and disruption budgets; the Services of DNS with their EndpointSlices; the definitions of custom
kinds of network programs, and their objects. Secrets are left out: a backup holds no credentials.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from podwire.errors import ConfigError

Json = dict[str, Any]

WORKLOAD_NAMES = (
    "coredns", "kube-dns", "node-local-dns", "dns-autoscaler", "kube-dns-autoscaler", "kube-proxy", "kube-router",
    "kube-flannel", "kube-flannel-ds", "calico-node", "calico-kube-controllers", "calico-typha", "tigera-operator",
    "cilium", "cilium-envoy", "cilium-operator", "antrea-agent", "antrea-controller", "weave-net", "canal", "kindnet",
    "aws-node", "azure-cni", "azure-cns", "kube-multus-ds", "ovnkube-node", "kube-ovn-cni", "kube-ovn-controller",
    "podwire-agent", "podwire-controller", "podwire-dns", "podwire-gateway", "ingress-nginx-controller", "speaker",
    "controller",
)  # fmt: skip
"""Names of DaemonSets and Deployments of network programs."""
_OWN_NAMESPACE = {"speaker": "metallb-system", "controller": "metallb-system"}
"""Names that only say something in their namespace."""
CRD_GROUPS = (
    "podwire.io", "projectcalico.org", "cilium.io", "antrea.io", "k8s.ovn.org", "kubeovn.io", "metallb.io",
    "k8s.cni.cncf.io", "gateway.networking.k8s.io", "policy.networking.k8s.io", "multicluster.x-k8s.io",
)  # fmt: skip
"""Groups of custom kinds of network programs, with the groups below each."""
_SERVER_FIELDS = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "selfLink")
_SERVER_ANNOTATIONS = ("deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation")


class Reference(NamedTuple):
    """An object that another one names."""

    kind: str
    namespace: str
    name: str


def network_workloads(items: Iterable[Json], named: Sequence[str]) -> list[Json]:
    """The workloads of the network: those with known names, and those that ``named`` lists as NAMESPACE/NAME.

    Raises: ConfigError for a name without a workload.
    """
    by_key = {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in items}
    for key in named:
        if key not in by_key:
            raise ConfigError("--workload", "", f"{key!r}: expected NAMESPACE/NAME of a DaemonSet or Deployment")
    known = [key for key in by_key if _is_known(*key.split("/", 1))]
    return [by_key[key] for key in sorted({*known, *named})]


def _is_known(namespace: str, name: str) -> bool:
    return name in WORKLOAD_NAMES and _OWN_NAMESPACE.get(name, namespace) == namespace


def configmaps(workload: Json) -> list[Reference]:
    """The ConfigMaps that the pods of a workload read."""
    namespace = workload["metadata"]["namespace"]
    spec = workload["spec"]["template"]["spec"]
    names: set[str] = set()
    for volume in spec.get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            if "configMap" in source:
                names.add(source["configMap"]["name"])
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for source in container.get("envFrom") or ():
            if "configMapRef" in source:
                names.add(source["configMapRef"]["name"])
        for variable in container.get("env") or ():
            if "configMapKeyRef" in (variable.get("valueFrom") or {}):
                names.add(variable["valueFrom"]["configMapKeyRef"]["name"])
    return [Reference("ConfigMap", namespace, name) for name in sorted(names)]


def account(workload: Json) -> Reference:
    """The ServiceAccount of the pods of a workload."""
    spec = workload["spec"]["template"]["spec"]
    return Reference("ServiceAccount", workload["metadata"]["namespace"], spec.get("serviceAccountName") or "default")


def bindings_of(bindings: Iterable[Json], accounts: Iterable[Reference]) -> list[Json]:
    """The bindings that give rights to one of the ServiceAccounts by name; ``default`` has none of its own."""
    expected = {(reference.namespace, reference.name) for reference in accounts if reference.name != "default"}
    return [
        binding
        for binding in bindings
        if any(
            subject.get("kind") == "ServiceAccount" and (subject.get("namespace"), subject.get("name")) in expected
            for subject in binding.get("subjects") or ()
        )
    ]


def role_of(binding: Json) -> Reference:
    """The role of a binding."""
    role = binding["roleRef"]
    namespace = "" if role["kind"] == "ClusterRole" else binding["metadata"]["namespace"]
    return Reference(role["kind"], namespace, role["name"])


def selects(selector: Mapping[str, Any] | None, workload: Json) -> bool:
    """Whether a selector by labels chooses the pods of a workload; one with expressions does not count."""
    labels = (workload["spec"]["template"].get("metadata") or {}).get("labels") or {}
    wanted_labels = dict((selector or {}).get("matchLabels") or {})
    return bool(wanted_labels) and wanted_labels.items() <= labels.items()


def scales(autoscaler: Json, workload: Json) -> bool:
    """Whether an autoscaler changes the replicas of a workload."""
    target = autoscaler["spec"]["scaleTargetRef"]
    meta = workload["metadata"]
    return (target["kind"], target["name"], autoscaler["metadata"]["namespace"]) == (
        workload.get("kind"), meta["name"], meta["namespace"],
    )  # fmt: skip


def dns_services(services: Iterable[Json], workloads: Iterable[Json]) -> list[Json]:
    """The Services with port 53 that select pods of a workload of the network."""
    candidates = list(workloads)
    return [
        service
        for service in services
        if any(port["port"] == 53 for port in service["spec"].get("ports") or ())
        and any(
            workload["metadata"]["namespace"] == service["metadata"]["namespace"]
            and selects({"matchLabels": service["spec"].get("selector")}, workload)
            for workload in candidates
        )
    ]


def network_definitions(definitions: Iterable[Json]) -> list[Json]:
    """The definitions of custom kinds of network programs."""
    return [
        item
        for item in definitions
        if any(item["spec"]["group"] == group or item["spec"]["group"].endswith(f".{group}") for group in CRD_GROUPS)
    ]


def served_version(definition: Json) -> str:
    """The version in which the objects of a custom kind are written: the one of the storage, if it is served."""
    versions = [version for version in definition["spec"]["versions"] if version.get("served")]
    preferred = next((version for version in versions if version.get("storage")), None)
    return str((preferred or versions[0])["name"]) if versions else ""


def portable(obj: Json) -> Json:
    """An object without its status and without what the API server sets itself."""
    result = {key: value for key, value in obj.items() if key != "status"}
    meta = {key: value for key, value in obj["metadata"].items() if key not in _SERVER_FIELDS}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in _SERVER_ANNOTATIONS}
    meta.pop("annotations", None)
    return result | {"metadata": meta | ({"annotations": annotations} if annotations else {})}


def is_derived(obj: Json) -> bool:
    """Whether a controller makes the object from others, such as an EndpointSlice: it is compared and not written."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") for owner in owners)


def title(obj: Json) -> str:
    """As ``ConfigMap kube-system/coredns``."""
    meta = obj["metadata"]
    return (
        f"{obj['kind']} {meta['namespace']}/{meta['name']}"
        if meta.get("namespace")
        else f"{obj['kind']} {meta['name']}"
    )


def differing(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """The paths of the fields in which an object differs from its form in the backup."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted({*expected, *actual}):
            inner = f"{path}.{key}" if path else key
            if key not in expected or key not in actual:
                yield inner
            else:
                yield from differing(expected[key], actual[key], inner)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, (old, new) in enumerate(zip(expected, actual, strict=True)):
            yield from differing(old, new, f"{path}[{number}]")
    elif expected != actual:
        yield path

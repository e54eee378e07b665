"""The objects that a local copy of a cluster gets, in the order in which they are applied. Pure.

Namespaces, then rights and ConfigMaps of the network, its budgets, the Services of the cluster, the policies, the
workloads of the network that the upgrade changes or that answer DNS, and stand-ins for the pods behind Services.
Secrets are not read. Addresses of Services stay where the copy has the same range.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from podwire.model.meta import Fact
from podwire.upgrade.apply.stepchanges import answers_dns
from podwire.upgrade.backup import selection
from podwire.upgrade.inventory.components import PARTS_OF_PODWIRE
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.values import UpgradePlan
from podwire.upgrade.rehearsal.workloads import WorkloadRoles, network_workload, own_workload, served_workload

Json = dict[str, Any]
OWN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that every cluster has."""
_SUPPORT = (
    "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "PodDisruptionBudget",
)  # fmt: skip
_WORKLOADS = ("DaemonSet", "Deployment")
_SERVICE_FIELDS = (
    "clusterIP", "clusterIPs", "healthCheckNodePort", "loadBalancerClass", "loadBalancerIP", "ipFamilies",
    "ipFamilyPolicy",
)  # fmt: skip
"""Fields that the API server of the copy decides, or that name what the copy does not have."""
_RIGHTS = "podwire-rehearsal-dns"
_DNS_SERVICE = "Service kube-system/kube-dns"


class RehearsalSource(Fact, frozen=True, kw_only=True):
    """What was read of the cluster."""

    inventory: Inventory
    plan: UpgradePlan
    network: tuple[Json, ...] = ()
    """As a backup has them."""
    services: tuple[Json, ...] = ()
    policies: tuple[Json, ...] = ()
    workloads: tuple[Json, ...] = ()
    """DaemonSets, Deployments and StatefulSets of all namespaces."""

    @property
    def has_own_agents(self) -> bool:
        """Whether the network of the cluster is podwire, whose agents are a DaemonSet."""
        return any(
            component.name == "podwire-agent" and component.kind == "DaemonSet" for component in self.plan.components
        )


class CopySettings(Fact, frozen=True, kw_only=True):
    """What the objects depend on: roles of images, the ranges of Services, the API server, the most pods of users."""

    roles: WorkloadRoles
    service_cidrs: tuple[str, ...]
    api: tuple[str, int]
    most_pods: int = 30


class CopiedObjects(Fact, frozen=True, kw_only=True):
    """The objects, and what is not in the copy, in words."""

    objects: tuple[Json, ...]
    differences: tuple[str, ...] = ()


def copied_objects(source: RehearsalSource, settings: CopySettings) -> CopiedObjects:
    """All objects of the copy."""
    support = list(_support(source))
    cidrs, own = settings.service_cidrs, source.has_own_agents
    services = [_service(item, cidrs, own=own) for item in source.services if not _is_of_api(item)]
    workloads = list(_network(source, settings))
    served, behind = _served(source, settings.most_pods)
    objects = [*support, *services, *map(_portable, source.policies), *workloads, *served]
    spaces = sorted({str(obj["metadata"].get("namespace") or "default") for obj in objects} - {*OWN_NAMESPACES})
    differences = [f"{count} of {total} workloads behind Services have stand-ins" for count, total in [behind]]
    return CopiedObjects(objects=(*map(_namespace, spaces), *objects), differences=tuple(differences))


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _portable(obj: Json) -> Json:
    result = selection.portable(obj)
    return result | {"metadata": {k: v for k, v in result["metadata"].items() if k not in ("ownerReferences",)}}


def _support(source: RehearsalSource) -> Iterator[Json]:
    for obj in source.network:
        is_own_kind = obj["kind"] == "CustomResourceDefinition" and str(obj["spec"]["group"]).endswith("podwire.io")
        if obj["kind"] in _SUPPORT or (is_own_kind and source.has_own_agents):
            yield _portable(obj)
    for workload in source.network:
        account = workload["spec"]["template"]["spec"].get("serviceAccountName") if is_dns(workload) else None
        if account and str(workload["metadata"]["name"]) not in PARTS_OF_PODWIRE:
            yield from _rights_of(str(account), str(workload["metadata"]["namespace"]))


def _rights_of(account: str, namespace: str) -> tuple[Json, Json]:
    """The rights of podwire's DNS server for the account of CoreDNS, in whose place it runs."""
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["multicluster.x-k8s.io"], "resources": ["serviceimports"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    meta, kinds = {"name": _RIGHTS}, {"apiVersion": f"{group}/v1"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return (
        {**kinds, "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            **kinds,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": _RIGHTS},
            "subjects": [subject],
        },
    )


def _is_of_api(service: Json) -> bool:
    """Whether a Service is that of the API server, which every cluster has."""
    meta = service["metadata"]
    return (meta["namespace"], meta["name"]) == ("default", "kubernetes")


def _service(service: Json, cidrs: Sequence[str], *, own: bool) -> Json:
    """A Service with its address; cluster DNS keeps that of the local cluster, unless the copy has podwire's agents."""
    spec = {key: value for key, value in service["spec"].items() if key not in _SERVICE_FIELDS}
    address = str(service["spec"].get("clusterIP") or "")
    if selection.title(service) == _DNS_SERVICE and not own:
        address = ""
    if address == "None" or (address and any(ip_address(address) in ip_network(cidr) for cidr in cidrs)):
        spec["clusterIP"] = address
    return _portable(service) | {"spec": spec}


def is_dns(obj: Json) -> bool:
    """Whether an object is a Deployment that answers DNS."""
    return obj["kind"] == "Deployment" and answers_dns(obj)


def _network(source: RehearsalSource, settings: CopySettings) -> Iterator[Json]:
    """The workloads of the network that steps change, that answer DNS, or that are podwire's own."""
    changed = {change.title for step in source.plan.steps if step.action != "manual" for change in step.changes}
    for obj in source.network:
        if obj["kind"] not in _WORKLOADS:
            continue
        if str(obj["metadata"]["name"]) in PARTS_OF_PODWIRE:
            if source.has_own_agents:
                yield own_workload(_portable(obj), settings.api)
        elif selection.title(obj) in changed or is_dns(obj):
            yield network_workload(obj, settings.roles)


def _served(source: RehearsalSource, most_pods: int) -> tuple[list[Json], tuple[int, int]]:
    """Stand-ins for workloads behind Services, as many as fit, and how many of how many there are."""
    network = {selection.title(obj) for obj in source.network if obj["kind"] in _WORKLOADS}
    selectors = [
        (item["metadata"]["namespace"], item["spec"]["selector"])
        for item in source.services
        if item["spec"].get("selector")
    ]
    every = [
        item for item in source.workloads if selection.title(item) not in network and _is_selected(item, selectors)
    ]
    served: list[Json] = []
    pods = 0
    for workload in sorted(every, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"])):
        copied = served_workload(workload)
        pods += int(copied["spec"]["replicas"])
        if pods > most_pods:
            break
        served.append(copied)
    return served, (len(served), len(every))


def _is_selected(workload: Json, selectors: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    labels = (workload["spec"]["template"].get("metadata") or {}).get("labels") or {}
    namespace = workload["metadata"]["namespace"]
    return any(space == namespace and selector.items() <= labels.items() for space, selector in selectors)

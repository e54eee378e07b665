"""A cluster as its manifests describe it, without a running cluster: for ``podwire why -f``.

Objects are admitted as by the API server (:mod:`podwire.local.offline.admission`). Objects that controllers would
create are added: pods of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, and endpoints of
Services that have a selector and no slices in the files. Missing facts are assumed: without Node objects, the nodes are
those that pods and endpoints name, or ``node-1``; pods without a node are assigned to the nodes in turn; pods without
a status are Ready; missing addresses are assumed. ``notes`` lists the assumptions.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from typing import Any, TypeVar

import msgspec

from podwire.agent.config import AgentConfig
from podwire.cluster.world import World
from podwire.controllers.endpointslice.endpoints import address_types, desired
from podwire.controllers.endpointslice.plan import of_service, plan
from podwire.errors import ConfigError
from podwire.local.config import ClusterConfig
from podwire.local.manifests import Manifest, read_manifests
from podwire.local.offline.admission import KINDS, AdmittedObject, admitted, is_read
from podwire.model.document import refusal
from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.model.service import EndpointSlice, Service
from podwire.model.wording import count
from podwire.policy.check.context import UnenforcedPolicy
from podwire.policy.check.inactive import skipped_note
from podwire.proxy.resolve import service_of
from podwire.proxy.validity import canonical_address
from podwire.why.objects import Collection

Json = dict[str, Any]
T = TypeVar("T", Node, Pod, Service, EndpointSlice, Object, NetworkPolicy, ClusterNetworkPolicy)

_NODE_RANGES = ("10.89.0.0/24", "fd89::/64")
_POD_RANGES = ("10.244.0.0/16", "fd10:244::/32")
_SERVICE_RANGES = ("10.96.0.0/16", "fd10:96::/112")
_POD_FIELDS = frozenset(("replicas", "instances", "image", "podMetadata", "podTemplate", "template", "containers"))
"""Fields in the spec of a custom resource that describe pods."""
_READY = {"type": "Ready", "status": "True"}


class DescribedCluster(msgspec.Struct, frozen=True):
    """The objects of the files, and the assumptions about missing ones."""

    objects: Collection
    world: World
    """The objects that policies depend on."""
    services: tuple[Service, ...]
    manifests: Mapping[tuple[str, str], Manifest]
    """By kind and key (``namespace/name``), without the pods of templates."""
    notes: tuple[str, ...]
    """One sentence for each assumption and for each object that is ignored."""
    cluster_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    duplicates: Mapping[str, str]
    """Objects that files define more than once (``kind namespace/name``), ``file:line`` of an unused definition."""
    unenforced: tuple[UnenforcedPolicy, ...]
    """Policies of kinds that podwire does not enforce."""
    passed_over: tuple[str, ...] = ()
    """The notes about documents that are no manifests."""
    operated: Mapping[str, tuple[str, ...]] = {}
    """Custom resources for which an operator probably makes pods, by namespace."""

    def line(self, kind: str, key: str, field: str = "") -> str:
        """``file:line`` of a field such as ``spec.ingress[0]``; empty when no file has the object."""
        manifest = self.manifests.get((kind, key))
        return manifest.at(field) if manifest is not None else ""

    def config(self, node: str) -> AgentConfig:
        """The configuration that a node's agent would have."""
        mode = ClusterConfig().proxy.mode
        return AgentConfig(
            node_name=node,
            cluster_cidrs=self.cluster_cidrs,
            service_cidrs=self.service_cidrs,
            proxy={"mode": mode},
        )


def describe(paths: tuple[str, ...], *, recursive: bool = False) -> DescribedCluster:
    """The cluster that files and folders describe; with ``recursive``, folders in folders are read too.

    A document in a folder that is no manifest is passed over, and a note names it.

    Raises: ConfigError with file, line and field of a mistake.
    """
    passed_over: list[str] = []
    description = describe_manifests(read_manifests(paths, recursive=recursive, foreign=passed_over.append))
    return msgspec.structs.replace(
        description, notes=(*passed_over, *description.notes), passed_over=tuple(passed_over)
    )


def describe_manifests(manifests: Iterable[Manifest]) -> DescribedCluster:
    """The cluster that manifests describe.

    Raises: ConfigError with file, line and field of a mistake.
    """
    objects: dict[tuple[str, str], AdmittedObject] = {}
    remarks: list[str] = []
    duplicates, manifests = {}, tuple(manifests)
    unenforced = tuple(_unenforced_policy(m) for m in manifests if "NetworkPolicy" in m.kind and not is_read(m))
    remarks += map(skipped_note, unenforced)
    for admitted_object in admitted(manifests, _SERVICE_RANGES):
        kind = admitted_object.manifest.kind
        previous = objects.pop((kind, admitted_object.key), None)
        objects[kind, admitted_object.key] = admitted_object
        if previous is not None:
            sources = previous.manifest.source, admitted_object.manifest.source
            duplicates[f"{kind} {admitted_object.key}"] = previous.manifest.source
            remarks.append(
                f"{kind} {admitted_object.key} is in {sources[0]} and in {sources[1]}; the second definition is used"
            )
        for field in admitted_object.unknown_kinds:
            where = f"{admitted_object.manifest.at(field)}: {field}"
            remarks.append(
                f"{where}: unknown kind: an Accept rule with it matches nothing, a Deny or Pass rule denies everything"
            )
    bodies: dict[str, list[Json]] = {kind: [] for _, kind in KINDS}
    for (kind, _), admitted_object in objects.items():
        bodies[kind].append(admitted_object.body)
    cluster = _ClusterMaker(
        bodies, {place: admitted_object.manifest for place, admitted_object in objects.items()}, remarks
    ).build()
    return msgspec.structs.replace(
        cluster, duplicates=duplicates, unenforced=unenforced, operated=_resources_of_operators(manifests)
    )


def _resources_of_operators(manifests: Iterable[Manifest]) -> dict[str, tuple[str, ...]]:
    """Custom resources with fields that describe pods, by namespace: operators make pods for them."""
    operated: dict[str, tuple[str, ...]] = {}
    for manifest in manifests:
        group = manifest.body["apiVersion"].rpartition("/")[0]
        spec = manifest.body.get("spec")
        own = "." not in group or group.endswith(".k8s.io") or "NetworkPolicy" in manifest.kind
        if not own and isinstance(spec, dict) and not _POD_FIELDS.isdisjoint(spec):
            meta = manifest.body["metadata"]
            namespace = str(meta.get("namespace") or "default")
            operated[namespace] = (*operated.get(namespace, ()), f"{manifest.kind} {meta.get('name', '')}")
    return operated


def _unenforced_policy(manifest: Manifest) -> UnenforcedPolicy:
    meta = manifest.body["metadata"]
    key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta.get("name", ""))
    annotations = meta.get("annotations") or {}
    return UnenforcedPolicy(
        api_version=manifest.body["apiVersion"],
        kind=manifest.kind,
        name=key,
        where=manifest.source,
        annotations={str(name): str(text) for name, text in annotations.items()},
    )


class _ClusterMaker:
    """Adds the objects and facts that the files leave out."""

    def __init__(
        self, bodies: Mapping[str, list[Json]], manifests: Mapping[tuple[str, str], Manifest], remarks: list[str]
    ) -> None:
        self.bodies = bodies
        self.manifests = manifests
        self.notes = remarks
        self.services = [_convert(body, Service) for body in bodies["Service"]]
        self.slices = [_convert(body, EndpointSlice) for body in bodies["EndpointSlice"]]
        self.nodes = self._nodes()
        self.pods = list(self._pods())

    def build(self) -> DescribedCluster:
        """The described cluster."""
        self._make_slices()
        own = [cidr for node in self.nodes for cidr in node.pod_cidrs]
        world = self._world()
        return DescribedCluster(
            objects=Collection(self.services, self.slices, world),
            world=world,
            services=tuple(self.services),
            manifests=self.manifests,
            notes=tuple(self.notes),
            cluster_cidrs=(*own, *_POD_RANGES),
            service_cidrs=_SERVICE_RANGES,
            duplicates={},
            unenforced=(),
        )

    def _world(self) -> World:
        """The objects that policies depend on."""
        return World(
            pods=tuple(self.pods),
            namespaces=tuple(_convert(body, Object) for body in self.bodies["Namespace"]),
            nodes=tuple(self.nodes),
            policies=tuple(_convert(body, NetworkPolicy) for body in self.bodies["NetworkPolicy"]),
            cluster_policies=tuple(_convert(b, ClusterNetworkPolicy) for b in self.bodies["ClusterNetworkPolicy"]),
        )

    def _nodes(self) -> list[Node]:
        bodies = {body["metadata"]["name"]: body for body in self.bodies["Node"]}
        if not bodies:
            named = {pod["spec"].get("nodeName") for pod in self.bodies["Pod"]}
            named |= {end.node_name for endpoint_slice in self.slices for end in endpoint_slice.endpoints or ()}
            names = sorted(filter(None, named)) or ["node-1"]
            bodies = {name: {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names}
            self.notes.append(f"the files have no Node; assumed nodes: {', '.join(names)}")
        for number, body in enumerate(bodies.values(), 11):
            status = body.setdefault("status", {})
            if not any(a.get("type") == "InternalIP" for a in status.get("addresses") or ()):
                addresses = [{"type": "InternalIP", "address": _nth(cidr, number)} for cidr in _NODE_RANGES]
                status["addresses"] = [*(status.get("addresses") or ()), *addresses]
            status.setdefault("conditions", [_READY])
        return [_convert(body, Node) for body in bodies.values()]

    def _pods(self) -> Iterator[Pod]:
        assumed = 0
        for number, (body, from_template) in enumerate(self._bodies()):
            names = [node.metadata.name for node in self.nodes]
            spec, status = body.setdefault("spec", {}), body.setdefault("status", {})
            spec.setdefault("nodeName", names[number % len(names)])
            if not status.get("podIP"):
                assumed += 1
                node_index = names.index(spec["nodeName"]) if spec["nodeName"] in names else len(names)
                ips = [_nth(cidr, node_index * 256 + 2 + number) for cidr in _POD_RANGES]
                status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips], "phase": "Running"}
                status.setdefault("conditions", [_READY])
            body["metadata"].setdefault("uid", f"pod-{number}" if from_template else body["metadata"]["name"])
            pod = _convert(body, Pod)
            listed = (pod.status.pod_ip, *(entry.ip for entry in pod.status.pod_ips))
            if wrong := [address for address in listed if address and not canonical_address(address)]:
                raise ConfigError(f"Pod {key_of(pod.metadata)}", "status.podIPs", f"{wrong[0]!r} is not an IP address")
            yield pod
        if assumed:
            self.notes.append(
                f"assumed addresses for {count(assumed, 'pod')} that the files do not give, and nodes for those "
                "without one; these pods count as Ready"
            )

    def _bodies(self) -> Iterator[tuple[Json, bool]]:
        """The pods, each with whether it comes from a template."""
        yield from ((body, False) for body in self.bodies["Pod"])
        for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"):
            for owner in self.bodies[kind]:
                yield from ((body, True) for body in self._of_template(kind, owner))

    def _of_template(self, kind: str, owner: Json) -> Iterator[Json]:
        meta, spec = owner["metadata"], owner["spec"]
        if kind == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        nodes = [node.metadata.name for node in self.nodes]
        number_of_pods = spec.get("parallelism", 1) if kind in ("Job", "CronJob") else spec.get("replicas", 1)
        for number in range(len(nodes) if kind == "DaemonSet" else int(number_of_pods)):
            body = msgspec.json.decode(msgspec.json.encode(spec["template"]))
            own = body.setdefault("metadata", {})
            own |= {"name": f"{meta['name']}-{number}", "namespace": meta["namespace"]}
            own["ownerReferences"] = [{"kind": kind, "name": meta["name"], "controller": True}]
            own["labels"] = {**own.get("labels", {}), **_labels_of(kind, own["name"], number, meta["name"])}
            if kind == "DaemonSet":
                body["spec"]["nodeName"] = nodes[number]
            yield {"apiVersion": "v1", "kind": "Pod", **body}

    def _make_slices(self) -> None:
        """Adds slices for Services that have a selector and no slices in the files."""
        served = {service_of(endpoint_slice) for endpoint_slice in self.slices}
        nodes = {node.metadata.name: node for node in self.nodes}
        for service in self.services:
            meta = service.metadata
            if not service.spec.selector or f"{meta.namespace}/{meta.name}" in served:
                continue
            labels = service.spec.selector.items()
            own = [
                pod
                for pod in self.pods
                if pod.metadata.namespace == meta.namespace and labels <= pod.metadata.labels.items()
            ]
            endpoints = desired(service, own, nodes)
            created = plan(of_service(service), endpoints, (), address_types(service), "").create
            for number, endpoint_slice in enumerate(created, 1):
                named = msgspec.structs.replace(endpoint_slice.metadata, name=f"{meta.name}-{number}")
                self.slices.append(msgspec.structs.replace(endpoint_slice, metadata=named))


def _labels_of(kind: str, pod: str, number: int, owner: str) -> dict[str, str]:
    """The labels that a controller adds to its pods, as far as they do not depend on a running cluster."""
    if kind == "StatefulSet":
        return {"statefulset.kubernetes.io/pod-name": pod, "apps.kubernetes.io/pod-index": str(number)}
    return {"batch.kubernetes.io/job-name": owner, "job-name": owner} if kind == "Job" else {}


def _nth(cidr: str, number: int) -> str:
    return str(ip_network(cidr)[number])


def _convert(body: Json, kind: type[T]) -> T:
    try:
        converted: T = msgspec.convert(body, kind)
    except msgspec.ValidationError as failure:
        meta = body["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
        raise ConfigError(f"{body['kind']} {key}", *refusal(failure, kind)) from failure
    return converted

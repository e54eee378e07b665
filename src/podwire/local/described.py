"""A cluster as its manifests describe it, without one: for ``podwire why -f``.

Objects are read as the API server reads them: unknown fields and wrong values are refused with file, line and field,
defaults are filled in, Services get addresses and node ports where none are given. What controllers would make is
made: pods of Deployments, ReplicaSets, StatefulSets and DaemonSets, endpoints of Services with a selector and without
slices of their own. Where the files say nothing, nodes are those that something is said to be on, or ``node-1``; pods
without a node are spread over the nodes in turn; pods without a status are Ready; and addresses are made up. What was
made up is said in ``notes``.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from typing import Any, TypeVar

import msgspec

from podwire.agent.config import AgentConfig
from podwire.apiserver.allocate import ServiceAllocator
from podwire.apiserver.defaults import objects as defaults
from podwire.apiserver.kinds import BY_KIND, Kind
from podwire.apiserver.schema import data
from podwire.apiserver.validate import fields, objects
from podwire.controllers.endpointslice.endpoints import address_types, desired
from podwire.controllers.endpointslice.plan import of_service, plan
from podwire.errors import ApiError, ConfigError, Invalid
from podwire.local.config import ClusterConfig
from podwire.local.manifests import Manifest, read_manifests
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.proxy.resolve import service_of
from podwire.proxy.why.objects import Collection

Json = dict[str, Any]
T = TypeVar("T", Node, Pod, Service, EndpointSlice)

_KINDS = {
    ("v1", "Service"),
    ("v1", "Pod"),
    ("v1", "Node"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
}
"""What matters here; everything else in the files is passed over."""

_NODE_RANGES = ("10.89.0.0/24", "fd89::/64")
_POD_RANGES = ("10.244.0.0/16", "fd10:244::/32")
_SERVICE_RANGES = ("10.96.0.0/16", "fd10:96::/112")
_READY = {"type": "Ready", "status": "True"}


class Described(msgspec.Struct, frozen=True):
    """The objects of the files, and what had to be made up."""

    objects: Collection
    notes: tuple[str, ...]
    cluster_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]

    def config(self, node: str) -> AgentConfig:
        """The configuration that a node's agent would have."""
        mode = ClusterConfig().proxy.mode
        return AgentConfig(
            node_name=node,
            cluster_cidrs=self.cluster_cidrs,
            service_cidrs=self.service_cidrs,
            proxy={"mode": mode},
        )


def describe(paths: tuple[str, ...]) -> Described:
    """The cluster that files and folders describe.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    return describe_manifests(read_manifests(paths))


def describe_manifests(manifests: Iterable[Manifest]) -> Described:
    """The cluster that manifests describe.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    given: dict[str, list[Json]] = {kind: [] for _, kind in _KINDS}
    allocator = ServiceAllocator(_SERVICE_RANGES)
    read = [(m, _read(m)) for m in manifests if (m.body["apiVersion"], m.kind) in _KINDS]
    for manifest, body in sorted(read, key=_asks_for_nothing):  # addresses that are asked for are taken first
        given[manifest.kind].append(_completed(manifest, body, allocator))
    return _Maker(given).described()


def _asks_for_nothing(read: tuple[Manifest, Json]) -> bool:
    """Whether it is a Service that leaves its address to be chosen."""
    manifest, body = read
    spec: Json = body.get("spec") or {}
    return manifest.kind == "Service" and not (spec.get("clusterIP") or spec.get("clusterIPs"))


def _kind(manifest: Manifest) -> Kind:
    group, _, version = str(manifest.body["apiVersion"]).rpartition("/")
    return BY_KIND[group, version, manifest.kind]


def _read(manifest: Manifest) -> Json:
    """The object with nothing but fields of its kind."""
    kind = _kind(manifest)
    schema = data.for_kind(kind.group, kind.version, kind.kind)
    assert schema is not None, "kinds that matter here have a schema"
    try:
        found = fields.decode(manifest.body, schema, kind)
    except ApiError as failure:
        raise ConfigError(manifest.source, "", f"{manifest.name}: {failure.message}") from failure
    if found.unknown:
        raise ConfigError(manifest.source, found.unknown[0], f"{manifest.name}: there is no such field")
    obj: Json = found.obj
    if kind.namespaced:
        obj["metadata"].setdefault("namespace", "default")
    return obj


def _completed(manifest: Manifest, obj: Json, allocator: ServiceAllocator) -> Json:
    """The object as the API server would store it."""
    kind = _kind(manifest)
    obj = defaults.apply(kind, obj)
    try:
        if manifest.kind == "Service":
            obj = allocator.assign(obj)
            allocator.observe(None, obj)
    except Invalid as failure:
        causes: list[Json] = failure.details.get("causes") or [{}]
        first = causes[0]
        problem = f"{manifest.name}: {first.get('message') or failure.message}"
        raise ConfigError(manifest.source, str(first.get("field", "")), problem) from failure
    for cause in objects.check(kind, obj, None):
        raise ConfigError(manifest.source, cause.field, f"{manifest.name}: {cause.message}")
    return obj


class _Maker:
    """Makes what the files leave out."""

    def __init__(self, given: Mapping[str, list[Json]]) -> None:
        self.given = given
        self.services = [_convert(body, Service) for body in given["Service"]]
        self.slices = [_convert(body, EndpointSlice) for body in given["EndpointSlice"]]
        self.notes: list[str] = []
        self.nodes = self._nodes()
        self.pods = list(self._pods())

    def described(self) -> Described:
        """All of it."""
        self._make_slices()
        own = [cidr for node in self.nodes for cidr in (node.spec.pod_cidrs or (node.spec.pod_cidr,)) if cidr]
        return Described(
            objects=Collection(self.services, self.slices, self.pods, self.nodes),
            notes=tuple(self.notes),
            cluster_cidrs=(*own, *_POD_RANGES),
            service_cidrs=_SERVICE_RANGES,
        )

    def _nodes(self) -> list[Node]:
        bodies = {body["metadata"]["name"]: body for body in self.given["Node"]}
        if not bodies:
            named = {pod["spec"].get("nodeName") for pod in self.given["Pod"]}
            named |= {end.node_name for piece in self.slices for end in piece.endpoints or ()}
            names = sorted(filter(None, named)) or ["node-1"]
            bodies = {name: {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names}
            self.notes.append(f"the files have no Node; taken are {', '.join(names)}")
        for number, body in enumerate(bodies.values(), 11):
            status = body.setdefault("status", {})
            if not any(a["type"] == "InternalIP" for a in status.get("addresses") or ()):
                made = [{"type": "InternalIP", "address": _nth(cidr, number)} for cidr in _NODE_RANGES]
                status["addresses"] = [*(status.get("addresses") or ()), *made]
            status.setdefault("conditions", [_READY])
        return [_convert(body, Node) for body in bodies.values()]

    def _pods(self) -> Iterator[Pod]:
        made = 0
        for number, (body, invented) in enumerate(self._bodies()):
            names = [node.metadata.name for node in self.nodes]
            spec, status = body.setdefault("spec", {}), body.setdefault("status", {})
            spec.setdefault("nodeName", names[number % len(names)])
            if not status.get("podIP"):
                made += 1
                place = names.index(spec["nodeName"]) if spec["nodeName"] in names else len(names)
                ips = [_nth(cidr, place * 256 + 2 + number) for cidr in _POD_RANGES]
                status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips], "phase": "Running"}
                status.setdefault("conditions", [_READY])
            body["metadata"].setdefault("uid", f"pod-{number}" if invented else body["metadata"]["name"])
            yield _convert(body, Pod)
        if made:
            self.notes.append(
                f"made up are the addresses of {made} pods, the nodes of those without one; all are Ready"
            )

    def _bodies(self) -> Iterator[tuple[Json, bool]]:
        """Pods as objects, and whether they come from a template."""
        yield from ((body, False) for body in self.given["Pod"])
        for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"):
            for owner in self.given[kind]:
                yield from ((body, True) for body in self._of_template(kind, owner))

    def _of_template(self, kind: str, owner: Json) -> Iterator[Json]:
        meta, spec = owner["metadata"], owner["spec"]
        nodes = [node.metadata.name for node in self.nodes]
        count = len(nodes) if kind == "DaemonSet" else int(spec.get("replicas", 1))
        for number in range(count):
            body = msgspec.json.decode(msgspec.json.encode(spec["template"]))
            own = body.setdefault("metadata", {})
            own |= {"name": f"{meta['name']}-{number}", "namespace": meta["namespace"]}
            if kind == "DaemonSet":
                body["spec"]["nodeName"] = nodes[number]
            yield {"apiVersion": "v1", "kind": "Pod", **body}

    def _make_slices(self) -> None:
        """The slices of Services that have a selector and none in the files."""
        served = {service_of(piece) for piece in self.slices}
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
            wanted = desired(service, own, nodes)
            created = plan(of_service(service), wanted, (), address_types(service), "").create
            for number, piece in enumerate(created, 1):
                named = msgspec.structs.replace(piece.metadata, name=f"{meta.name}-{number}")
                self.slices.append(msgspec.structs.replace(piece, metadata=named))


def _nth(cidr: str, number: int) -> str:
    return str(ip_network(cidr)[number])


def _convert(body: Json, kind: type[T]) -> T:
    found: T = msgspec.convert(body, kind)
    return found

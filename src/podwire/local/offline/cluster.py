"""A cluster as its manifests describe it, without one: for ``podwire why -f``.

Objects are read as the API server reads them (:mod:`podwire.local.offline.admission`). What controllers would make is
made: pods of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, and endpoints of Services that
have a selector and no slices of their own. Where the files say nothing, nodes are those that something is said to be
on, or ``node-1``; pods without a node are spread over the nodes in turn; pods without a status are Ready; and
addresses are made up. What was made up is said in ``notes``.
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
from podwire.local.offline.admission import KINDS, Stored, matters, stored
from podwire.model.document import refusal
from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.model.service import EndpointSlice, Service
from podwire.policy.check.context import UnenforcedPolicy
from podwire.policy.check.inactive import skipped_note
from podwire.proxy.resolve import canonical_address, service_of
from podwire.why.objects import Collection

Json = dict[str, Any]
T = TypeVar("T", Node, Pod, Service, EndpointSlice, Object, NetworkPolicy, ClusterNetworkPolicy)

_NODE_RANGES = ("10.89.0.0/24", "fd89::/64")
_POD_RANGES = ("10.244.0.0/16", "fd10:244::/32")
_SERVICE_RANGES = ("10.96.0.0/16", "fd10:96::/112")
_READY = {"type": "Ready", "status": "True"}


class Described(msgspec.Struct, frozen=True):
    """The objects of the files, and what had to be made up."""

    objects: Collection
    world: World
    """What policies are about."""
    services: tuple[Service, ...]
    manifests: Mapping[tuple[str, str], Manifest]
    """By kind and key (``namespace/name``); pods of a template are not among them."""
    notes: tuple[str, ...]
    cluster_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    twice: Mapping[str, str]
    """Objects that the files have more than once (``kind namespace/name``), and where one that does not count is."""
    others: tuple[UnenforcedPolicy, ...]
    """Policies of kinds that podwire does not enforce."""

    def line(self, kind: str, key: str, field: str = "") -> str:
        """``file:line`` of a field such as ``spec.ingress[0]``; empty for what no file has."""
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


def describe(paths: tuple[str, ...], *, recursive: bool = False) -> Described:
    """The cluster that files and folders describe, folders below them too where it is ``recursive``.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    return describe_manifests(read_manifests(paths, recursive=recursive))


def describe_manifests(manifests: Iterable[Manifest]) -> Described:
    """The cluster that manifests describe.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    found: dict[tuple[str, str], Stored] = {}
    notes: list[str] = []
    twice, manifests = {}, tuple(manifests)
    others = tuple(_other(m) for m in manifests if "NetworkPolicy" in m.kind and not matters(m))
    notes += map(skipped_note, others)
    for one in stored(manifests, _SERVICE_RANGES):
        kind = one.manifest.kind
        before = found.pop((kind, one.key), None)
        found[kind, one.key] = one
        if before is not None:
            sources = before.manifest.source, one.manifest.source
            twice[f"{kind} {one.key}"] = before.manifest.source
            notes.append(f"{kind} {one.key} is in {sources[0]} and in {sources[1]}, which counts")
        for field in one.newer:
            where = f"{one.manifest.at(field)}: {field}"
            notes.append(
                f"{where}: a kind that podwire does not know: Accept of it is nobody, Deny and Pass deny everybody"
            )
    given: dict[str, list[Json]] = {kind: [] for _, kind in KINDS}
    for (kind, _), one in found.items():
        given[kind].append(one.body)
    made = _Maker(given, {place: one.manifest for place, one in found.items()}, notes).described()
    return msgspec.structs.replace(made, twice=twice, others=others)


def _other(manifest: Manifest) -> UnenforcedPolicy:
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


class _Maker:
    """Makes what the files leave out."""

    def __init__(
        self, given: Mapping[str, list[Json]], manifests: Mapping[tuple[str, str], Manifest], notes: list[str]
    ) -> None:
        self.given = given
        self.manifests = manifests
        self.notes = notes
        self.services = [_convert(body, Service) for body in given["Service"]]
        self.slices = [_convert(body, EndpointSlice) for body in given["EndpointSlice"]]
        self.nodes = self._nodes()
        self.pods = list(self._pods())

    def described(self) -> Described:
        """All of it."""
        self._make_slices()
        own = [cidr for node in self.nodes for cidr in node.pod_cidrs]
        world = self._world()
        return Described(
            objects=Collection(self.services, self.slices, world),
            world=world,
            services=tuple(self.services),
            manifests=self.manifests,
            notes=tuple(self.notes),
            cluster_cidrs=(*own, *_POD_RANGES),
            service_cidrs=_SERVICE_RANGES,
            twice={},
            others=(),
        )

    def _world(self) -> World:
        """What policies are about."""
        return World(
            pods=tuple(self.pods),
            namespaces=tuple(_convert(body, Object) for body in self.given["Namespace"]),
            nodes=tuple(self.nodes),
            policies=tuple(_convert(body, NetworkPolicy) for body in self.given["NetworkPolicy"]),
            cluster_policies=tuple(_convert(b, ClusterNetworkPolicy) for b in self.given["ClusterNetworkPolicy"]),
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
            if not any(a.get("type") == "InternalIP" for a in status.get("addresses") or ()):
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
            pod = _convert(body, Pod)
            if wrong := [address for address in pod.addresses if not canonical_address(address)]:
                raise ConfigError(f"Pod {key_of(pod.metadata)}", "status.podIPs", f"{wrong[0]!r} is not an IP address")
            yield pod
        if made:
            self.notes.append(
                f"made up are the addresses of {made} pods, the nodes of those without one; all are Ready"
            )

    def _bodies(self) -> Iterator[tuple[Json, bool]]:
        """Pods as objects, and whether they come from a template."""
        yield from ((body, False) for body in self.given["Pod"])
        for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"):
            for owner in self.given[kind]:
                yield from ((body, True) for body in self._of_template(kind, owner))

    def _of_template(self, kind: str, owner: Json) -> Iterator[Json]:
        meta, spec = owner["metadata"], owner["spec"]
        if kind == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        nodes = [node.metadata.name for node in self.nodes]
        wanted = spec.get("parallelism", 1) if kind in ("Job", "CronJob") else spec.get("replicas", 1)
        for number in range(len(nodes) if kind == "DaemonSet" else int(wanted)):
            body = msgspec.json.decode(msgspec.json.encode(spec["template"]))
            own = body.setdefault("metadata", {})
            own |= {"name": f"{meta['name']}-{number}", "namespace": meta["namespace"]}
            own["ownerReferences"] = [{"kind": kind, "name": meta["name"], "controller": True}]
            own["labels"] = {**own.get("labels", {}), **_labels_of(kind, own["name"], number, meta["name"])}
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


def _labels_of(kind: str, pod: str, number: int, owner: str) -> dict[str, str]:
    """The labels that controllers add and that are known beforehand."""
    if kind == "StatefulSet":
        return {"statefulset.kubernetes.io/pod-name": pod, "apps.kubernetes.io/pod-index": str(number)}
    return {"batch.kubernetes.io/job-name": owner, "job-name": owner} if kind == "Job" else {}


def _nth(cidr: str, number: int) -> str:
    return str(ip_network(cidr)[number])


def _convert(body: Json, kind: type[T]) -> T:
    try:
        found: T = msgspec.convert(body, kind)
    except msgspec.ValidationError as failure:
        meta = body["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
        raise ConfigError(f"{body['kind']} {key}", *refusal(failure, kind)) from failure
    return found

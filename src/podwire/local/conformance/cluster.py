"""Applies a case to a local cluster through the API, and waits until it is in force.

The applied objects are kept as a stage, so the next case changes only the differences; unchanged pods keep running.
There are no fixed waits: API watches report when pods run and when deleted objects are gone, and the agents report when
all changes are in the kernels (:mod:`podwire.local.inforce`).
"""

import asyncio
from collections.abc import Collection, Mapping
from ipaddress import IPv6Network
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.cluster.names import POD_ADDRESSES
from podwire.errors import ApiError, ClusterError, ConfigError, Conflict, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, NAMESPACES, NETWORKPOLICIES, NODES, PODS, Json, Resource
from podwire.local import inforce
from podwire.local.conformance.families import embedded, in_families
from podwire.local.conformance.placing import ClusterNode, Placing, cluster_nodes, labels_to_set
from podwire.local.conformance.stage import Action, CasePod, Manifest, Stage, follow
from podwire.local.conformance.watches import ObjectWatches
from podwire.local.topology import Topology
from podwire.model.pod import Pod

_READY_S = 60.0
_IN_FORCE_S = 30.0
_ACCOUNT_S = 10.0
_POLL_S = 0.02
_FORBIDDEN = 403


class Families(msgspec.Struct, frozen=True, kw_only=True):
    """The IP families to check, and the prefix in which IPv6 embeds IPv4 (None: the pods have IPv4 only)."""

    checked: tuple[int, ...]
    prefix: IPv6Network | None

    def policy(self, manifest: Manifest, *, translate: bool) -> Manifest:
        """A policy with its IP ranges in the checked families; ``translate`` False: as it is."""
        if self.prefix is None or not translate:
            return manifest
        return in_families(manifest, self.checked, self.prefix)

    def address(self, pod: CasePod, family: int) -> str:
        """The address of a pod in an IP family; empty: it has none."""
        if family == 4:
            return pod.address
        if pod.ipv6 or not pod.translate or self.prefix is None:
            return pod.ipv6
        return embedded(pod.address, self.prefix)


class CaseCluster:
    """A cluster that runs cases."""

    def __init__(self, client: Client, topology: Topology, families: Families) -> None:
        self.families = families
        self.nodes: tuple[ClusterNode, ...] = ()
        self.placing = Placing(Stage(), ())
        self._client = client
        self._topology = topology
        self._watches = ObjectWatches(client)
        self._stage = Stage()
        self._original_labels: dict[str, dict[str, str | None]] = {}
        """The original values of the node labels that cases changed, by node."""

    async def __aenter__(self) -> "CaseCluster":
        await self._watches.start()
        self.nodes = cluster_nodes(self._watches.nodes.objects.values())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._watches.close()

    def check_free(self, namespaces: Collection[str]) -> None:
        """Checks that none of the namespaces exists already.

        Raises: ConfigError when one exists.
        """
        for name in sorted(namespaces):
            if name in self._watches.namespaces.objects:
                raise ConfigError(
                    "--name", "", f"namespace {name} exists already, and a case creates a namespace of that name"
                )

    async def begin(self, stage: Stage) -> None:
        """Applies the initial stage of a case, and deletes the policies of the previous case.

        Raises: ClusterError, ConfigError.
        """
        self.placing = Placing(stage, self.nodes)
        await self._label_nodes(stage)
        before = self._stage
        bare = replace(before, policies={}, cluster_policies={})
        for key in before.policies:
            await self._delete(NETWORKPOLICIES, *_split(key))
        for name in before.cluster_policies:
            await self._delete(CLUSTERNETWORKPOLICIES, "", name)
        for name in before.namespaces.keys() - stage.namespaces.keys():
            await self._delete(NAMESPACES, "", name)
            bare = follow(bare, Action(op="delete_namespace", namespace=name))
        stale = [pod for key, pod in bare.pods.items() if not _same(pod, stage.pods.get(key))]
        for pod in stale:
            await self._delete(PODS, pod.namespace, pod.name)
            bare = follow(bare, Action(op="delete_pod", namespace=pod.namespace, name=pod.name))
        self._stage = bare
        if stale or len(bare.namespaces) < len(before.namespaces):
            await self._watches.until(lambda: self._watches.undeleted(self._stage))
        await self._add(bare, stage)
        self._stage = stage

    async def _add(self, bare: Stage, stage: Stage) -> None:
        """Creates missing namespaces and pods, and corrects labels."""
        for name, labels in stage.namespaces.items():
            if name not in bare.namespaces:
                self._watches.created_namespaces.add(name)
                await self._client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
            elif bare.namespaces[name] != labels:
                await self._set_labels(NAMESPACES, "", name, bare.namespaces[name], labels)
        await asyncio.gather(*(self._create_pod(pod) for key, pod in stage.pods.items() if key not in bare.pods))
        for key, pod in stage.pods.items():
            if key in bare.pods and bare.pods[key].labels != pod.labels:
                await self._set_labels(PODS, pod.namespace, pod.name, bare.pods[key].labels, pod.labels)

    async def act(self, action: Action) -> None:
        """Does one action of a case.

        Raises: ClusterError when the API refuses it.
        """
        before, after = self._stage, follow(self._stage, action)
        self._stage = after
        namespace, name = action.namespace, action.name
        try:
            match action.op:
                case "create_policy" | "update_policy" | "create_cluster_policy" | "update_cluster_policy":
                    await self._write_policy(action)
                case "delete_policy":
                    await self._delete(NETWORKPOLICIES, namespace, name)
                case "delete_cluster_policy":
                    await self._delete(CLUSTERNETWORKPOLICIES, "", name)
                case "delete_all_policies":
                    for key in before.policies:
                        await self._delete(NETWORKPOLICIES, *_split(key))
                case "delete_namespace":
                    await self._delete(NAMESPACES, "", namespace)
                    await self._watches.until(lambda: self._watches.undeleted(self._stage))
                case "delete_pod":
                    await self._delete(PODS, namespace, name)
                    await self._watches.until(lambda: self._watches.undeleted(self._stage))
                case _:
                    await self._add(before, after)
        except ApiError as failure:
            raise ClusterError(f"{action.op} {action.key}: {failure.message}") from failure

    async def in_force(self) -> None:
        """Returns when the API shows all changes, pods are ready, and all nodes' kernels hold the changes.

        Raises: ClusterError with a change that is not in force in time.
        """
        names = [node.name for node in self.nodes]
        await self._watches.until(lambda: self._watches.outdated(self._stage, names))
        await inforce.wait(self._topology, names, self._watches.versions, self._client.clock, _IN_FORCE_S)

    async def clear(self) -> None:
        """Deletes all objects of cases, also those of a case that failed, and restores node labels."""
        for name in tuple(self._watches.written):
            plural, _, key = name.partition(" ")
            if plural == CLUSTERNETWORKPOLICIES.plural:
                await self._delete(CLUSTERNETWORKPOLICIES, "", key)
        for name in self._watches.created_namespaces:
            await self._delete(NAMESPACES, "", name)
        self._stage, self.placing = Stage(), Placing(Stage(), self.nodes)
        await self._label_nodes(self._stage)
        await self._watches.until(lambda: self._watches.undeleted(self._stage))

    def pod(self, key: str) -> Pod:
        """The pod in the API."""
        return self._watches.pods.objects[key]

    async def _label_nodes(self, stage: Stage) -> None:
        labels_by_node = labels_to_set(stage, self.placing)
        for node in self.nodes:
            before = self._original_labels.setdefault(node.name, {})
            labels: dict[str, str | None] = dict(labels_by_node.get(node.name, {}))
            for key in labels:
                before.setdefault(key, node.labels.get(key))
            changes = before | labels
            if any(changes[key] != before[key] for key in changes) or (before and not labels):
                written = await self._client.patch(NODES, node.name, {"metadata": {"labels": changes}})
                self._watches.written[f"nodes {node.name}"] = written["metadata"]["resourceVersion"]

    async def _create_pod(self, pod: CasePod) -> None:
        body = self._pod_body(pod)
        deadline = self._client.clock.monotonic() + _ACCOUNT_S
        while True:
            try:
                await self._client.create(PODS, body, pod.namespace)
            except ApiError as failure:
                # The ServiceAccount of a new namespace is created a moment after the namespace.
                if failure.code != _FORBIDDEN or self._client.clock.monotonic() > deadline:
                    raise ClusterError(f"pod {pod.key}: {failure.message}") from failure
                await self._client.clock.sleep(_POLL_S)
            else:
                return

    def _pod_body(self, pod: CasePod) -> Json:
        try:
            node = self.placing.node_of(pod)
        except ValueError as problem:
            raise ClusterError(f"pod {pod.key}: {problem}") from problem
        pinned = ",".join(filter(None, (self.families.address(pod, family) for family in (4, 6))))
        return {
            "metadata": {
                "name": pod.name,
                "labels": pod.labels,
                "annotations": {} if pod.host_network else {POD_ADDRESSES: pinned},
            },
            "spec": {
                "nodeName": node.name,
                "hostNetwork": pod.host_network,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "main",
                        "image": "busybox",
                        "command": ["sleep", "infinity"],
                        "ports": [
                            {"containerPort": port.container_port, "protocol": port.protocol}
                            | ({"name": port.name} if port.name else {})
                            for port in pod.ports
                        ],
                    }
                ],
            },
        }

    async def _write_policy(self, action: Action) -> None:
        assert action.policy is not None, "an action that writes has a policy"
        body = self.families.policy(action.policy, translate=self._stage.translate)
        kind: Resource[Any] = CLUSTERNETWORKPOLICIES if "cluster" in action.op else NETWORKPOLICIES
        if action.op.startswith("create"):
            written = await self._client.create(kind, body, action.namespace)
        else:
            written = await self._replace(kind, action, body)
        self._watches.written[f"{kind.plural} {action.key}"] = written["metadata"]["resourceVersion"]

    async def _replace(self, kind: Resource[Any], action: Action, body: Json) -> Json:
        """Replaces a policy; retries when an agent writes its annotations at the same time."""
        while True:
            have = await self._client.get(kind, action.name, action.namespace)
            meta = body["metadata"] | {"resourceVersion": have["metadata"]["resourceVersion"]}
            try:
                return await self._client.update(kind, body | {"metadata": meta}, action.namespace, name=action.name)
            except Conflict:
                continue

    async def _set_labels(
        self, kind: Resource[Any], namespace: str, name: str, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        labels: dict[str, str | None] = dict.fromkeys(before)
        labels.pop("kubernetes.io/metadata.name", None)
        await self._client.patch(kind, name, {"metadata": {"labels": labels | dict(after)}}, namespace)

    async def _delete(self, kind: Resource[Any], namespace: str, name: str) -> None:
        try:
            await self._client.delete(kind, name, namespace)
        except NotFound:
            return


def _same(pod: CasePod, other: CasePod | None) -> bool:
    """Whether a pod can keep running: the two differ in their labels at most."""
    return other is not None and replace(pod, labels={}) == replace(other, labels={})


def _split(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name

"""Sets up what the checks connect to, tries them from nodes, and takes everything down.

Objects have fixed names: a run that was killed leaves them, and the next run uses them, or deletes them at its end.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from podwire.errors import AlreadyExists, ClusterError, NotFound
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns
from podwire.kube.resources import ENDPOINTSLICES, NETWORKPOLICIES, NODES, Json
from podwire.model.meta import Fact
from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.verify import checks, objects
from podwire.upgrade.verify.checks import KINDS, CheckKind, ConnectionCheck, NodeResults
from podwire.upgrade.verify.objects import VerifyTargets

_AT_ONCE = 8
_ATTEMPTS = 2


class OutsideTargets(Fact, frozen=True, kw_only=True):
    """Addresses and ports outside of the cluster: servers, and observers with the source addresses that they must see.

    Without servers the API server is tried; without sources observers must see the node.
    """

    servers: tuple[tuple[str, int], ...] = ()
    observers: tuple[tuple[str, int], ...] = ()
    sources: tuple[str, ...] = ()


NOTHING_OUTSIDE = OutsideTargets()
"""The API server alone."""


class VerifyStage:
    """The stage in one namespace."""

    def __init__(
        self, client: Client, namespace: str, image: ProbeImage, outside: OutsideTargets = NOTHING_OUTSIDE
    ) -> None:
        self._client = client
        self._runs = PodRuns(client, namespace)
        self._namespace = namespace
        self._image = image
        self._outside = outside
        self._targets: VerifyTargets | None = None

    async def set_up(self, nodes: Sequence[str], kinds: Sequence[CheckKind] = KINDS) -> None:
        """Makes the pods, the Service and the policy, and waits until the pods are ready.

        Raises: ClusterError when they do not get ready, or there is no node for them; ApiError.
        """
        servers = objects.server_nodes(nodes)
        if not servers:
            raise ClusterError("no node is Ready: connections cannot be tried")
        if "policy" in kinds:
            await self._ensure_policy()
            await self._runs.ensure_pod(objects.server_pod(self._image, servers[0], "denied"))
        observers = objects.observer_nodes(servers) if "egress" in kinds else ()
        for node in observers:
            await self._runs.ensure_pod(objects.server_pod(self._image, node, "observer"))
        for node in servers:
            await self._runs.ensure_pod(objects.server_pod(self._image, node))
        service = await self._runs.ensure_service(objects.service())
        pods = {node: await self._runs.address_of(f"{objects.NAME}-server-{node}") for node in servers}
        denied = await self._runs.address_of(f"{objects.NAME}-denied-{servers[0]}") if "policy" in kinds else ""
        for node in observers:
            await self._runs.address_of(f"{objects.NAME}-observer-{node}")
        own = await self._addresses() if "nodeport" in kinds or observers else {}
        self._targets = VerifyTargets(
            pods=pods,
            service=str(service["spec"]["clusterIP"]),
            node_port=next((int(port["nodePort"]) for port in service["spec"]["ports"] if "nodePort" in port), 0),
            nodes={name: own[name][0] for name in servers if own.get(name)},
            observers={name: own[name][0] for name in observers if own.get(name)},
            own=own,
            denied=denied,
            outside=self._outside.observers,
            sources=self._outside.sources,
            egress=self._outside.servers or (await self._api_servers() if "egress" in kinds else ()),
            name=f"{objects.NAME}.{self._namespace}.svc",
        )

    async def _ensure_policy(self) -> None:
        try:
            await self._client.create(NETWORKPOLICIES, objects.policy(), self._namespace)
        except AlreadyExists:
            pass

    async def _addresses(self) -> Mapping[str, tuple[str, ...]]:
        """By node, its addresses in the cluster."""
        nodes = (await self._client.list(NODES.raw)).items
        return {str(node["metadata"]["name"]): internal_addresses(node) for node in nodes}

    async def _api_servers(self) -> tuple[tuple[str, int], ...]:
        """The addresses of the API servers, which are outside of the pods' network."""
        try:
            slice_ = await self._client.get(ENDPOINTSLICES.raw, "kubernetes", "default")
        except NotFound:
            return ()
        addresses = [str(endpoint["addresses"][0]) for endpoint in slice_.get("endpoints") or ()]
        ports = [int(port["port"]) for port in slice_.get("ports") or ()]
        return tuple((address, ports[0]) for address in addresses[:1] if ports)

    async def check(self, nodes: Sequence[str], kinds: Sequence[CheckKind]) -> tuple[NodeResults, ...]:
        """The results of some nodes, in their order.

        Raises: ApiError, ApiUnreachable.
        """
        assert self._targets is not None, "set_up comes first"
        results: list[NodeResults] = []
        for start in range(0, len(nodes), _AT_ONCE):
            batch = nodes[start : start + _AT_ONCE]
            tried = [objects.connections(self._targets, kinds, node) for node in batch]
            results += await asyncio.gather(*map(self.attempt, batch, tried))
        return tuple(results)

    async def attempt(self, node: str, tried: Sequence[ConnectionCheck]) -> NodeResults:
        """What happens to connections from a pod of a node; a pod that gave no results is started twice."""
        if not tried:
            return NodeResults(node=node)
        results = NodeResults(node=node, problem="was not tried")
        for _ in range(_ATTEMPTS):
            try:
                _, log = await self._runs.run_pod(objects.try_pod(self._image, node, tried))
            except ClusterError as failure:
                results = NodeResults(node=node, problem=str(failure))
                continue
            results = checks.results_of(node, log)
            if not results.problem:
                break
        return results


async def take_down(client: Client, namespace: str) -> None:
    """Deletes everything that a stage made, also that of a run that was killed."""
    await PodRuns(client, namespace).delete_labelled(objects.NAME)
    try:
        await client.delete(NETWORKPOLICIES, objects.NAME, namespace)
    except NotFound:
        pass


def internal_addresses(node: Json) -> tuple[str, ...]:
    """The addresses of a node in the cluster."""
    addresses: list[Any] = (node.get("status") or {}).get("addresses") or []
    return tuple(str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP")

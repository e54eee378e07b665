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
from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.verify import checks, objects
from podwire.upgrade.verify.checks import KINDS, CheckKind, ConnectionCheck, NodeResults
from podwire.upgrade.verify.objects import VerifyTargets

_AT_ONCE = 8
_ATTEMPTS = 2


class VerifyStage:
    """The stage in one namespace."""

    def __init__(
        self, client: Client, namespace: str, image: ProbeImage, egress: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._client = client
        self._runs = PodRuns(client, namespace)
        self._namespace = namespace
        self._image = image
        self._egress = tuple(egress)
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
            await self._runs.ensure_pod(objects.server_pod(self._image, servers[0], denied=True))
        for node in servers:
            await self._runs.ensure_pod(objects.server_pod(self._image, node))
        service = await self._runs.ensure_service(objects.service())
        pods = {node: await self._runs.address_of(f"{objects.NAME}-server-{node}") for node in servers}
        denied = await self._runs.address_of(f"{objects.NAME}-denied-{servers[0]}") if "policy" in kinds else ""
        addresses = await self._addresses(servers) if "nodeport" in kinds else {}
        self._targets = VerifyTargets(
            pods=pods,
            service=str(service["spec"]["clusterIP"]),
            node_port=next((int(port["nodePort"]) for port in service["spec"]["ports"] if "nodePort" in port), 0),
            nodes=addresses,
            denied=denied,
            egress=self._egress or (await self._api_servers() if "egress" in kinds else ()),
            name=f"{objects.NAME}.{self._namespace}.svc",
        )

    async def _ensure_policy(self) -> None:
        try:
            await self._client.create(NETWORKPOLICIES, objects.policy(), self._namespace)
        except AlreadyExists:
            pass

    async def _addresses(self, names: Sequence[str]) -> Mapping[str, str]:
        nodes = {node["metadata"]["name"]: node for node in (await self._client.list(NODES.raw)).items}
        return {name: address for name in names if name in nodes and (address := internal_address(nodes[name]))}

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
        tried = objects.connections(self._targets, kinds)
        if not tried:
            return tuple(NodeResults(node=node) for node in nodes)
        results: list[NodeResults] = []
        for start in range(0, len(nodes), _AT_ONCE):
            batch = nodes[start : start + _AT_ONCE]
            results += await asyncio.gather(*(self.attempt(node, tried) for node in batch))
        return tuple(results)

    async def attempt(self, node: str, tried: Sequence[ConnectionCheck]) -> NodeResults:
        """What happens to connections from a pod of a node; a pod that gave no results is started twice."""
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


def internal_address(node: Json) -> str:
    """The address of a node in the cluster; empty without one."""
    addresses: list[Any] = (node.get("status") or {}).get("addresses") or []
    return next((str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP"), "")

"""Creates, reads and removes the objects of numbered flows in a cluster."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from podwire.errors import AlreadyExists, ApiUnreachable, ClusterError, NotFound
from podwire.flows import objects
from podwire.flows.messages import HTTP_PORT
from podwire.flows.objects import NAME, NAMESPACE, Json
from podwire.flows.plan import FlowAddresses, FlowServer
from podwire.flows.settings import FlowSettings
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns, is_ready
from podwire.kube.resources import (
    INGRESSCLASSES,
    INGRESSES,
    NAMESPACES,
    NETWORKPOLICIES,
    PODS,
    SERVICEACCOUNTS,
    SERVICES,
    Resource,
)

_READY_S = 120.0
_ACCOUNT_S = 15.0


class FlowCluster:
    """The objects of one cluster's flows."""

    def __init__(self, client: Client, settings: FlowSettings, say: Callable[[str], None]) -> None:
        self._client = client
        self._settings = settings
        self._say = say
        self.runs = PodRuns(client, NAMESPACE)

    async def prepare(self) -> None:
        """Creates the namespace and the policy, and waits for the account that pods of a new namespace need."""
        await self.create(NAMESPACES, objects.namespace())
        await self.create(NETWORKPOLICIES, objects.policy())
        try:
            await self.runs.until(self._has_account, f"namespace {NAMESPACE} has no ServiceAccount", _ACCOUNT_S)
        except ClusterError as failure:
            self._say(str(failure))

    async def remove(self) -> None:
        """Removes all objects; returns when they are gone.

        Raises: ClusterError.
        """
        try:
            await self._client.delete(NAMESPACES, NAMESPACE)
        except NotFound:
            return
        await self.runs.until(self._is_gone, f"namespace {NAMESPACE} is not deleted", _READY_S)

    async def _has_account(self) -> bool:
        try:
            await self._client.get(SERVICEACCOUNTS, "default", NAMESPACE)
        except NotFound:
            return False
        return True

    async def create(self, resource: Resource[Any], body: Json) -> None:
        """Creates an object unless it is there; a pod that has ended is replaced."""
        if resource is PODS:
            await self.runs.ensure_pod(body)
            return
        with contextlib.suppress(AlreadyExists):
            await self._client.create(resource, body, "" if resource is NAMESPACES else NAMESPACE)

    async def addresses(self, nodes: Sequence[str], node_addresses: Sequence[str]) -> FlowAddresses:
        """What flows go to; waits for the servers, and for addresses that the cluster may give.

        Raises: ClusterError when a server is not ready.
        """
        servers = []
        for node in nodes:
            servers.append(FlowServer(node, await self._pod_addresses(objects.pod_name("server", node))))
        settings = self._settings
        await self.create(SERVICES, objects.service(settings.balancer_class))
        service = await self._client.get(SERVICES.raw, NAME, NAMESPACE)
        (port,) = [item for item in service["spec"]["ports"] if item["name"] == f"tcp-{HTTP_PORT}"]
        outside = settings.folder is not None
        balancers = await self._balancer(SERVICES) if outside and settings.balancer_class is not None else ()
        ingresses: tuple[str, ...] = ()
        if outside and settings.ingress_class is not None and (await self._client.list(INGRESSCLASSES.raw)).items:
            await self.create(INGRESSES, objects.ingress(settings.ingress_class))
            ingresses = await self._balancer(INGRESSES)
        space, name = settings.dns
        return FlowAddresses(
            servers=tuple(servers),
            service=tuple(service["spec"].get("clusterIPs") or ()),
            dns=await self._service_addresses(space, name),
            domain=settings.domain,
            node_ports=tuple((address, int(port["nodePort"])) for address in node_addresses) if outside else (),
            balancers=balancers,
            ingresses=ingresses,
        )

    async def _service_addresses(self, space: str, name: str) -> tuple[str, ...]:
        try:
            present = await self._client.get(SERVICES.raw, name, space)
        except NotFound:
            self._say(f"there is no Service {space}/{name}: no queries of DNS are sent")
            return ()
        return tuple(present["spec"].get("clusterIPs") or ())

    async def _balancer(self, resource: Resource[Any]) -> tuple[str, ...]:
        """The addresses of the Service or the Ingress; none when the cluster gives it none."""
        addresses: list[str] = []

        async def assigned() -> bool:
            present = await self._client.get(resource.raw, NAME, NAMESPACE)
            items = ((present.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
            addresses[:] = [item["ip"] for item in items if item.get("ip")]
            return bool(addresses)

        try:
            await self.runs.until(assigned, f"{resource.kind} {NAME} has no address", self._settings.balancer_s)
        except ClusterError as failure:
            self._say(f"{failure}: it is not tested")
        return tuple(addresses)

    async def _pod_addresses(self, name: str) -> tuple[str, ...]:
        addresses: list[str] = []

        async def ready() -> bool:
            pod = await self.runs.pod(name)
            if pod is not None and is_ready(pod):
                addresses[:] = [item["ip"] for item in pod["status"].get("podIPs") or ()]
            return bool(addresses)

        await self.runs.until(ready, f"pod {name} is not ready", _READY_S)
        return tuple(addresses)

    async def _is_gone(self) -> bool:
        try:
            await self._client.get(NAMESPACES, NAMESPACE)
        except NotFound:
            return True
        return False

    async def whole_log(self, name: str) -> str:
        """The log of a pod, which is never empty; tried again while the node's kubelet does not answer.

        Raises: ClusterError.
        """
        logs: list[str] = []

        async def read() -> bool:
            logs.append(await self.log(name))
            return bool(logs[-1])

        await self.runs.until(read, f"the log of pod {name} cannot be read", _READY_S)
        return logs[-1]

    async def log(self, name: str, lines: int | None = None) -> str:
        """The log of a pod, or its last lines; empty when it cannot be read now."""
        try:
            return await self.runs.log(name, lines)
        except ApiUnreachable:
            return ""

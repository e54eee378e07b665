"""Reads the inventory of a cluster from its API.

About 15 lists, whatever the size of the cluster: Nodes, DaemonSets, Deployments, Services, budgets and custom kinds,
the pods of the namespaces that matter, and single ConfigMaps. Lists are read at the same time, so that this process
decodes one while the API server makes the next; the pages of one list follow each other. A kind that the API does not
serve has no objects; a kind that the user must not read is named in ``unreadable``.
"""

import asyncio
from typing import Any, TypeVar

from msgspec import structs

from podwire.errors import ApiError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import (
    CONFIGMAPS,
    CUSTOMRESOURCEDEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    HORIZONTALPODAUTOSCALERS,
    INGRESSCLASSES,
    NAMESPACES,
    PODDISRUPTIONBUDGETS,
    SERVICES,
    Json,
    Resource,
)
from podwire.upgrade.inventory.inventory import (
    SYSTEM,
    IngressClassController,
    Inventory,
    InventoryNode,
    InventoryPod,
    StorageVersions,
)
from podwire.upgrade.inventory.servers import all_versions, own_version

T = TypeVar("T")

_NODES = Resource("", "v1", "nodes", "Node", False, InventoryNode)
_PODS = Resource("", "v1", "pods", "Pod", True, InventoryPod)
_HELM_CHARTS: Resource[Json] = Resource("helm.cattle.io", "v1", "helmcharts", "HelmChart", True, dict)

CONFIG_MAPS: tuple[tuple[str, str], ...] = (
    (SYSTEM, "coredns"), (SYSTEM, "coredns-custom"), (SYSTEM, "kube-proxy"), (SYSTEM, "kube-proxy-config"),
    (SYSTEM, "kubeadm-config"), (SYSTEM, "kube-dns"), (SYSTEM, "rke2-coredns-rke2-coredns"),
    ("kube-flannel", "kube-flannel-cfg"), (SYSTEM, "kube-flannel-cfg"), (SYSTEM, "podwire-agent"),
    (SYSTEM, "podwire-dns"),
)  # fmt: skip
"""The ConfigMaps that the plan reads, where they are there."""

_AT_ONCE = 4
"""Requests at the same time; each further connection costs both sides a handshake."""
_PAGE = 500
"""Objects of one answer: a page of 500 pods is about 3 MB."""


async def read_inventory(client: Client) -> Inventory:
    """The inventory.

    Raises: ApiError when the user must not read Nodes; ApiUnreachable.
    """
    reader = _Reader(client)
    budgets, daemonsets, rest = await asyncio.gather(
        reader.list(PODDISRUPTIONBUDGETS), reader.list(DAEMONSETS.raw), _without_pods(client, reader)
    )
    namespaces = {SYSTEM, *(budget.metadata.namespace for budget in budgets)}
    namespaces |= {str(item["metadata"].get("namespace", "")) for item in daemonsets}
    pods = await asyncio.gather(*(reader.list(_PODS, namespace) for namespace in sorted(namespaces)))
    return structs.replace(
        rest,
        pods=tuple(pod for members in pods for pod in members),
        daemonsets=daemonsets,
        budgets=budgets,
        unreadable=tuple(sorted(reader.unreadable)),
    )


async def _without_pods(client: Client, reader: "_Reader") -> Inventory:
    """What does not depend on namespaces."""
    nodes, deployments, services = await asyncio.gather(
        reader.nodes(), reader.list(DEPLOYMENTS.raw), reader.list(SERVICES)
    )
    autoscalers, classes, kinds, charts = await asyncio.gather(
        reader.list(HORIZONTALPODAUTOSCALERS.raw, SYSTEM),
        reader.list(INGRESSCLASSES.raw),
        reader.list(CUSTOMRESOURCEDEFINITIONS),
        reader.list(_HELM_CHARTS),
    )
    cluster, version, servers, config_maps = await asyncio.gather(
        reader.cluster(), own_version(client), all_versions(client), reader.config_maps()
    )
    return Inventory(
        cluster=cluster,
        version=version,
        servers=servers,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        deployments=deployments,
        config_maps=config_maps,
        services=services,
        autoscalers=autoscalers,
        ingress_controllers=tuple(
            IngressClassController(ingress_class=item["metadata"]["name"], controller=_controller(item))
            for item in classes
        ),
        custom_kinds=tuple(map(_storage_versions, kinds)),
        helm_charts=tuple(f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}" for item in charts),
    )


class _Reader:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self.unreadable: list[str] = []

    async def list(self, resource: Resource[T], namespace: str = "") -> tuple[T, ...]:
        """All objects; none of a kind that is not served or must not be read."""
        try:
            return await self._pages(resource, namespace)
        except NotFound:
            return ()
        except ApiError as failure:
            if failure.code != 403:
                raise
            self.unreadable.append(f"{resource.kind} in {namespace}" if namespace else resource.kind)
            return ()

    async def nodes(self) -> tuple[InventoryNode, ...]:
        return await self._pages(_NODES, "")

    async def _pages(self, resource: Resource[T], namespace: str) -> tuple[T, ...]:
        items: list[T] = []
        token = ""
        while True:
            async with self._gate:
                page = await self._client.list(resource, namespace, limit=_PAGE, continue_=token)
            items += page.items
            token = page.continue_
            if not token:
                return tuple(items)

    async def cluster(self) -> str:
        try:
            return (await self._client.get(NAMESPACES, SYSTEM, decode_as=NAMESPACES.type)).metadata.uid
        except ApiError as failure:
            if failure.code not in (403, 404):
                raise
            return ""

    async def config_maps(self) -> dict[str, dict[str, str]]:
        contents = await asyncio.gather(*(self._content(namespace, name) for namespace, name in CONFIG_MAPS))
        return {
            f"{namespace}/{name}": content
            for (namespace, name), content in zip(CONFIG_MAPS, contents, strict=True)
            if content is not None
        }

    async def _content(self, namespace: str, name: str) -> dict[str, str] | None:
        """The content of a ConfigMap; None when it is not there, or must not be read."""
        try:
            async with self._gate:
                item = await self._client.get(CONFIGMAPS, name, namespace)
        except NotFound:
            return None
        except ApiError as failure:
            if failure.code != 403:
                raise
            self.unreadable.append(f"ConfigMap {namespace}/{name}")
            return None
        return dict(item.get("data") or {})


def _controller(item: Json) -> str:
    return str((item.get("spec") or {}).get("controller", ""))


def _storage_versions(item: Json) -> StorageVersions:
    versions: list[dict[str, Any]] = item.get("spec", {}).get("versions") or []
    return StorageVersions(
        name=item["metadata"]["name"],
        storage=next((str(version.get("name")) for version in versions if version.get("storage")), ""),
        stored_versions=tuple(item.get("status", {}).get("storedVersions") or ()),
        served=tuple(str(version.get("name")) for version in versions if version.get("served")),
    )

"""Reads the inventory of a cluster from its API.

About 15 requests, whatever the size of the cluster: lists of Nodes, DaemonSets, Deployments, Services, budgets and
custom kinds, the pods of the namespaces that matter, and single ConfigMaps. A kind that the API does not serve has no
objects; a kind that the user must not read is named in ``unreadable``.
"""

from typing import Any, TypeVar

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

_PAGE = 500
"""Objects of one answer: a page of 500 pods is about 3 MB."""


async def read_inventory(client: Client) -> Inventory:
    """The inventory.

    Raises: ApiError when the user must not read Nodes; ApiUnreachable.
    """
    reader = _Reader(client)
    budgets = await reader.list(PODDISRUPTIONBUDGETS)
    daemonsets = await reader.list(DAEMONSETS.raw)
    namespaces = {SYSTEM, *(budget.metadata.namespace for budget in budgets)}
    namespaces |= {str(item["metadata"].get("namespace", "")) for item in daemonsets}
    pods = [pod for namespace in sorted(namespaces) for pod in await reader.list(_PODS, namespace)]
    return Inventory(
        cluster=await reader.cluster(),
        version=await own_version(client),
        servers=await all_versions(client),
        nodes=tuple(sorted(await reader.nodes(), key=lambda node: node.name)),
        pods=tuple(pods),
        daemonsets=daemonsets,
        deployments=await reader.list(DEPLOYMENTS.raw),
        config_maps=await reader.config_maps(),
        services=await reader.list(SERVICES),
        budgets=budgets,
        autoscalers=await reader.list(HORIZONTALPODAUTOSCALERS.raw, SYSTEM),
        ingress_controllers=tuple(
            IngressClassController(ingress_class=item["metadata"]["name"], controller=_controller(item))
            for item in await reader.list(INGRESSCLASSES.raw)
        ),
        custom_kinds=tuple(map(_storage_versions, await reader.list(CUSTOMRESOURCEDEFINITIONS))),
        helm_charts=tuple(
            f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
            for item in await reader.list(_HELM_CHARTS)
        ),
        unreadable=tuple(reader.unreadable),
    )


class _Reader:
    def __init__(self, client: Client) -> None:
        self._client = client
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
        contents: dict[str, dict[str, str]] = {}
        for namespace, name in CONFIG_MAPS:
            try:
                item = await self._client.get(CONFIGMAPS, name, namespace)
            except NotFound:
                continue
            except ApiError as failure:
                if failure.code != 403:
                    raise
                self.unreadable.append(f"ConfigMap {namespace}/{name}")
                continue
            contents[f"{namespace}/{name}"] = dict(item.get("data") or {})
        return contents


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

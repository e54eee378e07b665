"""Reads the objects of a cluster's network from the API, in the order in which a restore writes them."""

from collections.abc import AsyncIterator, Iterator, Sequence

from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.resources import (
    CONFIGMAPS,
    CUSTOMRESOURCEDEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    HORIZONTALPODAUTOSCALERS,
    PODDISRUPTIONBUDGETS,
    SERVICEACCOUNTS,
    SERVICES,
    Json,
    Resource,
)
from podwire.upgrade.backup import selection
from podwire.upgrade.backup.selection import Reference

_RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(_RBAC, "v1", "roles", "Role", True, dict)
CLUSTERROLES = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False, dict)
ROLEBINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True, dict)
CLUSTERROLEBINDINGS = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict)


async def network_objects(client: Client, named: Sequence[str]) -> AsyncIterator[Json]:
    """The objects of the network; ``named`` has further workloads as NAMESPACE/NAME.

    Raises: ConfigError for a name without a workload; ApiError, ApiUnreachable.
    """
    workloads = [*await listed(client, DAEMONSETS.raw), *await listed(client, DEPLOYMENTS.raw)]
    workloads = selection.network_workloads(workloads, named)
    definitions = selection.network_definitions(await listed(client, CUSTOMRESOURCEDEFINITIONS))
    for definition in definitions:
        yield definition
    async for obj in _rights(client, workloads):
        yield obj
    for reference in sorted({reference for workload in workloads for reference in selection.configmaps(workload)}):
        async for obj in _present(client, CONFIGMAPS, reference):
            yield obj
    async for obj in _services(client, workloads):
        yield obj
    for definition in definitions:
        for obj in await listed(client, _custom(definition)):
            yield obj
    async for obj in _around(client, workloads):
        yield obj
    for workload in workloads:
        yield workload


async def _around(client: Client, workloads: Sequence[Json]) -> AsyncIterator[Json]:
    """Autoscalers and disruption budgets of the workloads."""
    for autoscaler in await listed(client, HORIZONTALPODAUTOSCALERS.raw):
        if any(selection.scales(autoscaler, workload) for workload in workloads):
            yield autoscaler
    for budget in await listed(client, PODDISRUPTIONBUDGETS.raw):
        if any(_in_namespace(budget, w) and selection.selects(budget["spec"].get("selector"), w) for w in workloads):
            yield budget


async def listed(client: Client, resource: Resource[Json]) -> list[Json]:
    """All objects of a resource, each with its kind, by namespace and name."""
    items = (await client.list(resource)).items
    typed = [{"apiVersion": resource.api_version, "kind": resource.kind} | item for item in items]
    return sorted(typed, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))


async def _rights(client: Client, workloads: Sequence[Json]) -> AsyncIterator[Json]:
    accounts = sorted({selection.account(workload) for workload in workloads})
    for reference in accounts:
        async for obj in _present(client, SERVICEACCOUNTS, reference):
            yield obj
    every = [*await listed(client, CLUSTERROLEBINDINGS), *await listed(client, ROLEBINDINGS)]
    bindings = selection.bindings_of(every, accounts)
    for reference in sorted(set(map(selection.role_of, bindings))):
        resource = CLUSTERROLES if reference.kind == "ClusterRole" else ROLES
        async for obj in _present(client, resource, reference):
            yield obj
    for binding in bindings:
        yield binding


async def _services(client: Client, workloads: Sequence[Json]) -> AsyncIterator[Json]:
    services = selection.dns_services(await listed(client, SERVICES.raw), workloads)
    for service in services:
        yield service
    for service in services:
        meta = service["metadata"]
        selector = f"kubernetes.io/service-name={meta['name']}"
        page = await client.list(ENDPOINTSLICES.raw, meta["namespace"], label_selector=selector)
        for item in page.items:
            yield {"apiVersion": ENDPOINTSLICES.api_version, "kind": ENDPOINTSLICES.kind} | item


async def _present(client: Client, resource: Resource[Json], reference: Reference) -> AsyncIterator[Json]:
    """The object, if it is there."""
    try:
        obj = await client.get(resource, reference.name, reference.namespace)
    except NotFound:
        return
    yield {"apiVersion": resource.api_version, "kind": resource.kind} | obj


def _custom(definition: Json) -> Resource[Json]:
    spec = definition["spec"]
    namespaced = spec["scope"] == "Namespaced"
    version = selection.served_version(definition)
    return Resource(spec["group"], version, spec["names"]["plural"], spec["names"]["kind"], namespaced, dict)


def resources_of(definitions: Iterator[Json]) -> dict[tuple[str, str], Resource[Json]]:
    """By apiVersion and kind, the resources of every object that a backup can have."""
    fixed: tuple[Resource[Json], ...] = (
        CUSTOMRESOURCEDEFINITIONS, SERVICEACCOUNTS, ROLES, CLUSTERROLES, ROLEBINDINGS, CLUSTERROLEBINDINGS, CONFIGMAPS,
        SERVICES.raw, ENDPOINTSLICES.raw, HORIZONTALPODAUTOSCALERS.raw, PODDISRUPTIONBUDGETS.raw, DAEMONSETS.raw,
        DEPLOYMENTS.raw,
    )  # fmt: skip
    known = {(resource.api_version, resource.kind): resource for resource in fixed}
    return known | {(r.api_version, r.kind): r for r in map(_custom, definitions)}


def _in_namespace(obj: Json, workload: Json) -> bool:
    return bool(obj["metadata"].get("namespace") == workload["metadata"]["namespace"])

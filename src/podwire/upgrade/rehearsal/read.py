"""Reads what a rehearsal copies: the network as a backup has it, Services, policies, and the workloads behind Services.

About 25 lists, whatever the size of the cluster. Nothing is changed, and Secrets are not read.
"""

from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    DAEMONSETS,
    DEPLOYMENTS,
    NETWORKPOLICIES,
    SERVICES,
    STATEFULSETS,
    Json,
    Resource,
)
from podwire.upgrade.apply.stepchanges import WORKLOADS
from podwire.upgrade.backup.clusterread import listed, network_objects
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.values import UpgradePlan
from podwire.upgrade.rehearsal.objects import RehearsalSource


async def read_source(client: Client, inventory: Inventory, plan: UpgradePlan) -> RehearsalSource:
    """What the copy is made of.

    Raises: ConfigError for a workload of the plan that is gone; ApiError, ApiUnreachable.
    """
    changes = (change for step in plan.steps if step.action != "manual" for change in step.changes)
    changed = {f"{change.namespace}/{change.name}" for change in changes if change.kind in WORKLOADS}
    return RehearsalSource(
        inventory=inventory,
        plan=plan,
        network=tuple([obj async for obj in network_objects(client, sorted(changed))]),
        services=tuple(await listed(client, SERVICES.raw)),
        policies=(
            *await listed(client, NETWORKPOLICIES.raw),
            *await _listed_if_served(client, CLUSTERNETWORKPOLICIES.raw),
        ),
        workloads=(
            *await listed(client, DEPLOYMENTS.raw),
            *await listed(client, STATEFULSETS.raw),
            *await listed(client, DAEMONSETS.raw),
        ),
    )


async def _listed_if_served(client: Client, resource: Resource[Json]) -> list[Json]:
    try:
        return await listed(client, resource)
    except NotFound:
        return []

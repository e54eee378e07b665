"""Runs the preflight: reads the cluster, makes the plan, and checks both."""

from podwire.kube.client import Client
from podwire.upgrade.inventory.read import read_inventory
from podwire.upgrade.plan.compose import make_plan, sorted_findings
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.preflight.checks import PreflightSituation, preflight
from podwire.upgrade.preflight.configurations import DIRECTORIES, DIRECTORY, read_configurations


async def run(client: Client, targets: Targets, node_image: str | None, directory: str) -> tuple[UpgradeFinding, ...]:
    """All findings; with an image also those about the files of nodes in ``directory`` (empty: that of the layout).

    Raises: ApiError, ApiUnreachable, ConfigError.
    """
    inventory = await read_inventory(client)
    plan = make_plan(inventory, targets)
    configurations: dict[str, tuple[str, ...]] = {}
    unread: tuple[UpgradeFinding, ...] = ()
    if node_image is not None:
        names = [node.name for node in inventory.nodes if node.ready]
        chosen = directory or DIRECTORIES.get(plan.layout, DIRECTORY)
        configurations, unread = await read_configurations(client, names, node_image, chosen)
    situation = PreflightSituation(inventory=inventory, plan=plan, configurations=configurations)
    return sorted_findings([*preflight(situation), *unread])

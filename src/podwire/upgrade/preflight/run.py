"""Runs the preflight: reads the cluster, makes the plan, and checks both."""

from podwire.kube.client import Client
from podwire.upgrade.inventory.read import read_inventory
from podwire.upgrade.plan.compose import make_plan, sorted_findings
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.preflight.checks import PreflightSituation, preflight
from podwire.upgrade.preflight.nodefacts import DIRECTORIES, DIRECTORY, NodeListing, read_facts


async def run(client: Client, targets: Targets, node_image: str | None, directory: str) -> tuple[UpgradeFinding, ...]:
    """All findings; with an image also those about the files of nodes in ``directory`` (empty: that of the layout).

    Raises: ApiError, ApiUnreachable, ConfigError.
    """
    inventory = await read_inventory(client)
    plan = make_plan(inventory, targets)
    facts: dict[str, NodeListing] = {}
    unread: tuple[UpgradeFinding, ...] = ()
    if node_image is not None:
        ready = [node for node in inventory.nodes if node.ready]
        chosen = directory or DIRECTORIES.get(plan.layout, DIRECTORY)
        facts, unread = await read_facts(client, ready, node_image, chosen)
    situation = PreflightSituation(
        inventory=inventory,
        plan=plan,
        configurations={node: entry.configurations for node, entry in facts.items()},
        modules={node: entry.modules for node, entry in facts.items() if entry.modules is not None},
    )
    return sorted_findings([*preflight(situation), *unread])

"""Constructs block IPAM of the agent: the node claims blocks of pools, and announces them on its Node."""

from podwire.agent.shared import Shared
from podwire.cni.ipam.blocks.keeper import BlockKeeper, BlockSettings
from podwire.cni.service import CniService


def add(shared: Shared, cni: CniService) -> None:
    """Adds the keeper of this node's blocks; requests for pods wait for it when no address is free."""
    section = shared.config.cni
    settings = BlockSettings(strict=section.strict_affinity, most=section.max_blocks)
    node = shared.config.node_name
    keeper = BlockKeeper(shared.client, node, shared.all_nodes, cni.leases, shared.announcer.announce, settings)
    keeper.events = shared.events
    shared.events.follow_rejected(keeper.pools, keeper.blocks)
    shared.nodes.subscribe(lambda _key, _old, _new: keeper.nodes_changed(), replay=False)
    cni.address_source = keeper
    shared.health.ready["blocks"] = lambda: keeper.problem

    async def keep() -> None:
        await shared.nodes.synced.wait()
        await keeper.run()

    shared.tasks |= {"ippools": keeper.follow_pools, "ipamblocks": keeper.follow_blocks, "blocks": keep}

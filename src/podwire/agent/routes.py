"""Constructs the part ``routing`` of the agent."""

from pathlib import Path

from podwire.agent.pods import hand_over
from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING, PEER_UNREACHED
from podwire.cni.service import CniService
from podwire.kube.resources import NODES
from podwire.routing.keys import KeyStore
from podwire.routing.machine import OWNER, KernelMachine
from podwire.routing.own_node import PodNetworkFacts
from podwire.routing.plan import Plan
from podwire.routing.router import Router
from podwire.runtime.children import Children, spawn_program
from podwire.runtime.supervise import Supervisor


def add(shared: Shared, cni: CniService | None, supervisor: Supervisor) -> None:
    """Adds the router; ``cni`` gets the MTU and addresses for pods, ``supervisor`` runs child processes."""
    config, nodes = shared.config, shared.nodes
    router = Router(config.node_name, shared.all_nodes, KernelMachine(features=shared.features), shared.clock)
    router.cidrs = config.networks
    run_dir = Path(config.run_dir, "routing")
    router.own.run_dir = str(run_dir)
    router.programs = Children(run_dir / "children", spawn_program, supervisor, shared.clock, router.note_child)
    router.keys = KeyStore(Path(config.state_dir, "routing"))
    router.configure(config.routing_settings)
    shared.on_settings.append(lambda settings: router.configure(settings.routing))
    nodes.subscribe(router.node_changed)
    shared.health.ready["routing"] = lambda: router.problem
    shared.health.metrics["routing"] = router.samples
    shared.state_page.parts["routing"] = lambda: [router.share(OWNER)]
    shared.in_force.parts["routing"] = lambda: {NODES.plural: nodes.versions} if router.settled else None

    async def announce(plan: Plan) -> bool:
        me, _ = router.own.look()
        if cni is not None and me is not None:
            hand_over(cni, PodNetworkFacts(plan.pod_mtu, me.addresses, me.pod_cidrs))
        shared.degraded.report("routing", FEATURE_MISSING, router.missing)
        shared.degraded.report("peers", PEER_UNREACHED, router.unreached)
        return await shared.announcer.announce(plan.facts.annotations(), network=True)

    async def route() -> None:
        await nodes.synced.wait()
        await shared.until_settings_are_known()
        await router.run(announce)

    shared.tasks |= {"routing": route, "routing tick": router.tick}

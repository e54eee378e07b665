"""Constructs the part ``routing`` of the agent."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from podwire.agent import pathchecks
from podwire.agent.config import ClusterSettings
from podwire.agent.flannel import FlannelOutput
from podwire.agent.flanneletcd import FlannelLeases
from podwire.agent.pods import further_networks, hand_over
from podwire.agent.shared import Shared
from podwire.bgp.configuration import ServiceRoutes
from podwire.cluster.announcer import NetworkStatus
from podwire.cluster.degraded import FEATURE_MISSING, PEER_UNREACHED
from podwire.cni.service import CniService
from podwire.kube.resources import NODES
from podwire.model.node import Node
from podwire.proxy.settings import parse_settings
from podwire.routing.backends.bgp.objects import BgpObjects
from podwire.routing.egress.follower import EgressFollower
from podwire.routing.follower import FOLLOWERS, FollowerContext, ObjectFollower
from podwire.routing.keys import KeyStore
from podwire.routing.machine import OWNER, KernelMachine
from podwire.routing.observer import SessionObserver
from podwire.routing.own_node import PodNetworkFacts
from podwire.routing.plan import Plan
from podwire.routing.router import Router
from podwire.runtime.children import Children, spawn_program
from podwire.runtime.supervise import Supervisor


def add(shared: Shared, cni: CniService | None, supervisor: Supervisor) -> None:
    """Adds the router; ``cni`` gets the MTU and addresses for pods, ``supervisor`` runs child processes."""
    config, nodes = shared.config, shared.nodes
    leases, machine = _flannel_leases(shared), KernelMachine(features=shared.features)
    router = _router(shared, machine, leases.nodes if leases else shared.all_nodes, supervisor)
    _follow_settings(shared, router)
    if cni is not None:
        router.cut_off = lambda plan: cni.leave_networks(further_networks(plan.pod_networks))
    nodes.subscribe(router.node_changed)
    shared.health.ready["routing"] = lambda: router.problem
    shared.health.metrics["routing"] = router.applied.samples
    firewalls = pathchecks.add(shared, router, machine)
    shared.state_page.parts["routing"] = lambda: [router.applied.share(OWNER), *firewalls.shares()]
    shared.in_force.parts["routing"] = lambda: {NODES.plural: nodes.versions} if router.settled else None

    router.backends.followers = _followers(shared, router)
    flannel = FlannelOutput(config.flannel, leases)
    egress = EgressFollower(shared.client, router, nodes, *shared.selected())
    shared.tasks |= egress.tasks(alone="policy" not in config.parts)

    async def announce(plan: Plan) -> bool:
        await egress.applied()
        me, _ = router.own.look()
        if cni is not None and me is not None:
            facts = PodNetworkFacts(
                plan.pod_mtus, me.addresses, me.pod_cidrs, plan.leg, me.whole_cidrs, plan.pod_networks
            )
            if not hand_over(cni, facts):
                return False  # Peers must not learn of legs that pods do not have.
        shared.degraded.report(
            "routing", FEATURE_MISSING, "; ".join(filter(None, (router.backends.missing, plan.degraded)))
        )
        shared.degraded.report("peers", PEER_UNREACHED, router.applied.unreached)
        network = NetworkStatus(router.backends.refused, by_controller=plan.ready_by_controller)
        announced = plan.facts.annotations()
        if me is not None:
            announced |= flannel.annotations(me, plan)
            flannel.write(me, plan, config.networks, masquerade=router.settings.masquerade)
        return await shared.announcer.announce(announced, network=network)

    async def route() -> None:
        await nodes.synced.wait()
        await shared.until_settings_are_known()
        await egress.known.wait()
        await flannel.known()
        await router.run(announce)

    observer = SessionObserver(router, shared.clock, shared.own_node, shared.announcer.insist)
    shared.pages["/sessions"] = lambda _query: observer.page()
    shared.tasks["sessions"] = observer.run
    shared.tasks |= {"routing": route, "routing tick": router.tick} | flannel.tasks(router.changed)


def _router(
    shared: Shared, machine: KernelMachine, nodes: Callable[[], Mapping[str, Node]], supervisor: Supervisor
) -> Router:
    """The router of this node, with its child processes and keys; ``nodes`` returns all Nodes."""
    config = shared.config
    router = Router(config.node_name, nodes, machine, shared.clock)
    router.cidrs = config.networks
    run_dir = Path(config.run_dir, "routing")
    router.own.run_dir = str(run_dir)
    router.programs.children = Children(
        run_dir / "children", spawn_program, supervisor, shared.clock, router.programs.note_child
    )
    router.keys = KeyStore(Path(config.state_dir, "routing"))
    return router


def _flannel_leases(shared: Shared) -> FlannelLeases | None:
    """The leases of flanneld in etcd; None where none are read."""
    config = shared.config
    if not config.flannel.etcd.endpoints:
        return None
    return FlannelLeases(
        config.flannel.etcd,
        config.node_name,
        shared.all_nodes,
        Path(config.state_dir, "flannel-leases.json"),
        shared.clock,
        partial(shared.degraded.report, "flannel", PEER_UNREACHED),
    )


def _follow_settings(shared: Shared, router: Router) -> None:
    """Configures the router, now and after each change of the cluster's settings."""
    config = shared.config
    router.own.leg_obstacle = leg_obstacle(config.parts, parse_settings(config.proxy).mode)
    router.configure(config.routing_settings)

    def configure(settings: ClusterSettings) -> None:
        obstacle = leg_obstacle(config.parts, settings.proxy.mode)
        if obstacle != router.own.leg_obstacle:
            router.own.leg_obstacle = obstacle
            router.changed()
        router.configure(settings.routing)

    shared.on_settings.append(configure)


def leg_obstacle(parts: Collection[str], proxy_mode: str) -> str:
    """Why pods of a node with these parts may have no second interface; empty: they may."""
    if "policy" in parts:
        problem = "NetworkPolicies are in force on this node, and would not see the packets of second interfaces"
        return f"{problem} (run the agent without the part policy, or use another routing.backend)"
    if "proxy" in parts and proxy_mode == "ipvs":
        problem = "connections that ipvs translates look like others, so their answers would take second interfaces"
        return f"{problem} (use another proxy.mode, or another routing.backend)"
    return ""


class BgpInputs:
    """What the backend ``bgp`` gets from two sides: the objects of its follower, and the routes of load balancers."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._objects: BgpObjects | None = None
        self._services = ServiceRoutes()

    def take_objects(self, objects: BgpObjects) -> None:
        """Takes over the objects."""
        self._objects = objects
        self._hand_over()

    def take_services(self, services: ServiceRoutes) -> bool:
        """Takes over the routes of load balancers; False: the node has another backend."""
        is_used = self._router.settings.backend == "bgp"
        services = services if is_used else ServiceRoutes()
        if services != self._services:
            self._services = services
            self._hand_over()
        return is_used

    def _hand_over(self) -> None:
        if self._objects is not None:
            self._router.take_objects("bgp", replace(self._objects, services=self._services))


def _followers(shared: Shared, router: Router) -> Mapping[str, Callable[[], None]]:
    """Adds a task for the follower of each backend with objects of its own; by backend, what starts the follower."""
    inputs = BgpInputs(router)
    shared.take_service_routes = inputs.take_services
    takers = {"bgp": inputs.take_objects}
    return {
        name: _follower(shared, router, name, takers.get(name) or partial(router.take_objects, name))
        for name in FOLLOWERS
    }


def _follower(shared: Shared, router: Router, name: str, take: Callable[[Any], None]) -> Callable[[], None]:
    config, needed = shared.config, asyncio.Event()
    running: list[ObjectFollower] = []

    async def follow() -> None:
        await needed.wait()
        context = FollowerContext(
            client=shared.client,
            events=shared.events,
            namespace=config.settings.partition("/")[0] or "kube-system",
            directory=Path(config.state_dir, "routing"),
            nodes=shared.all_nodes,
            masquerade=lambda: router.settings.masquerade,
            take=take,
            blocks=config.cni.ipam == "blocks",
            node=config.node_name,
            device=lambda: router.own.device,
        )
        running[:] = [FOLLOWERS.load(name)(context)]
        await running[0].run()

    def disturb() -> None:
        for follower in running:
            follower.disturbed()

    shared.nodes.subscribe(lambda _key, _old, _new: disturb(), replay=False)
    shared.on_settings.append(lambda _settings: disturb())
    shared.tasks[f"objects of {name}"] = follow
    return needed.set

"""Constructs the part ``cni`` of the agent."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from podwire.agent.cnifiles import CniFiles
from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING, STATE_NOT_WRITTEN
from podwire.cluster.podnetworks import DEFAULT_NETWORK, NodePodNetwork
from podwire.cni.ipam.page import page
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import wiring_facts
from podwire.model.node import Node
from podwire.routing.machine import KernelMachine
from podwire.routing.own_node import OwnNode, PodNetworkFacts


def add(shared: Shared) -> CniService:
    """Adds the CNI server with its tasks; takes over the pods of an earlier agent at once."""
    config = shared.config
    settings = CniSettings(
        socket=config.socket,
        database=config.database,
        network=config.cni.network,
        cooldown_s=config.cni.cooldown_s,
        host_local=Path(config.cni.host_local) if config.cni.host_local else None,
        link=config.cni.link,
    )
    service = CniService(settings, shared.clock)
    service.disk.report = lambda text: shared.degraded.report("disk", STATE_NOT_WRITTEN, text)
    service.attachments.report_guard = lambda guard, text: shared.degraded.report(guard, FEATURE_MISSING, text)
    service.recover(legs="policy" not in config.parts)  # No policy sees the packets of legs.
    shared.health.ready["cni"] = service.problem
    shared.health.metrics["cni"] = service.samples
    shared.state_page.parts["cni"] = service.shares
    shared.pages["/ipam"] = partial(page, service.leases)
    shared.tasks |= {
        "cni": service.run,
        "cni deletion": service.delete_detached,
        "cni connections": service.forget_stale,
        "cni sweep": service.sweep,
        "cni disk": service.disk.run,
        "cni heal": service.healing.run,
        "cni sysctls": service.healing.compare_sysctls,
        "cni hardware addresses": service.hardware.run,
    }
    if config.cni.host_local:
        from podwire.cni.bridgedpods import BridgedPods

        bridged = BridgedPods(service.leases, shared.clock)
        shared.state_page.parts["bridges"] = bridged.shares
        shared.tasks["cni bridges"] = bridged.run
    files = CniFiles(config, shared.clock)
    files.try_to_install()
    shared.tasks["cni files"] = lambda: files.run(service.served.wait)
    return service


def hand_over(cni: CniService, facts: PodNetworkFacts) -> bool:
    """Passes facts of routing to the wiring of pods; returns whether the uplink of pods' legs exists."""
    networks = further_networks(facts.pod_networks)
    return cni.set_node(
        wiring_facts(facts.mtus, facts.addresses, facts.cidrs, facts.leg, whole=facts.whole, networks=networks)
    )


def further_networks(networks: Iterable[NodePodNetwork]) -> Mapping[str, tuple[str, ...]]:
    """The ranges of pod networks besides the default one, by their names."""
    return {network.name: network.cidrs for network in networks if network.name != DEFAULT_NETWORK}


def follow_node(shared: Shared, cni: CniService) -> None:
    """Makes pods follow the Node of this agent when another program routes their packets."""
    machine = KernelMachine(features=shared.features)
    own = OwnNode(shared.config.node_name, shared.all_nodes, machine)

    def look() -> None:
        facts = own.pod_network()
        if facts is not None:
            hand_over(cni, facts)
        me, _ = own.look()
        if me is not None:
            machine.watch(look, (me.underlay.link,))  # The MTU of pods is that of the device.

    def changed(_key: str, _old: Node | None, _new: Node | None) -> None:
        look()

    shared.nodes.subscribe(changed)

"""Constructs the part ``policy`` for pods of other CNI plugins.

The agent has no part ``cni`` then, or it takes the place of the other plugin (:func:`add_discovery`). Pods are found by
their addresses in the API and the node's devices (:mod:`podwire.policy.foreign.discovery`). When
podwire-cni follows the other plugin (:mod:`podwire.cni.chain.policy`), it reports pods before the API knows their
addresses.
"""

from pathlib import Path

from podwire.agent import podbridges
from podwire.agent.cnifiles import CniFiles
from podwire.agent.policypart import PolicyPart, attached_pod
from podwire.agent.shared import Shared
from podwire.cluster.degraded import POD_NOT_FOUND
from podwire.cni.chain.policy import PolicyChain
from podwire.cni.gate import EnforcementGate
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.server import CniServer
from podwire.observe.log import Log
from podwire.policy.foreign.devices import bridges_of_devices, find_device
from podwire.policy.foreign.discovery import PodDiscovery, not_located
from podwire.policy.foreign.kernel import KernelLinks


def add(shared: Shared, policies: PolicyPart) -> None:
    """Adds the discovery of pods and the chained plugin."""
    add_discovery(shared, policies)
    chain = make_chain(shared, policies)
    shared.health.metrics["policy chain"] = chain.samples
    server = CniServer(shared.config.socket, chain.handle, Log("cni"), chain.before)
    shared.tasks["policy chain"] = server.run
    files = CniFiles(shared.config, shared.clock)
    files.try_to_install()
    shared.tasks["cni files"] = files.keep_program


def add_discovery(shared: Shared, policies: PolicyPart) -> None:
    """Adds the discovery of pods that no other source has reported, and their isolation on bridges."""
    enforcement, degraded = policies.enforcement, shared.degraded
    discovery = PodDiscovery(shared.config.node_name, policies.informers.pods, enforcement, KernelLinks(), shared.clock)
    discovery.stuck = lambda pods: degraded.report("pods", POD_NOT_FOUND, not_located(pods))
    policies.prepared.append(discovery.scanned)
    shared.health.metrics["policy discovery"] = discovery.samples
    if policies.bridges is not None:
        podbridges.connect(shared, policies.bridges, enforcement)
        discovery.bridges_changed = policies.bridges.look
    shared.tasks |= {"policy discovery": discovery.run, "policy bridges": discovery.watch}


def make_chain(shared: Shared, policies: PolicyPart) -> PolicyChain:
    """The chained plugin, with the pods that an earlier agent has attached."""
    enforcement = policies.enforcement

    def attach(*attachments: Attachment) -> None:
        bridges = bridges_of_devices()
        enforcement.attach(*(attached_pod(x, bridges.get(x.host_link, "")) for x in attachments))

    gate = EnforcementGate(enforcement.admission, attach, enforcement.detach)
    ledger = Ledger(Path(shared.config.state_dir, "policy.db"))
    chain = PolicyChain(ledger, gate, find_device, policies.overview.problem)
    bridges = bridges_of_devices()
    chain.forget_lost(bridges)
    attachments = chain.held.values()
    enforcement.restore(tuple(attached_pod(a, bridges.get(a.host_link, "")) for a in attachments))
    return chain

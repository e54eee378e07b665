"""Policies for pods that other CNI plugins wire: the agent's part policy where its part cni is not.

Pods are found by their addresses in the API and the node's devices (:mod:`podwire.policy.foreign.discovery`), and told
by podwire-cni where it stands behind the other plugin (:mod:`podwire.cni.chain.policy`), which is there before the API
knows the addresses.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.agent.policies import PolicyPart
from podwire.cni import program
from podwire.cni.chain.policy import PolicyChain
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.protocol import CniRequest
from podwire.cni.server import CniServer
from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.observe.health import Metric, Sample
from podwire.observe.log import Log
from podwire.policy.attached import AttachedPod
from podwire.policy.foreign.discovery import PodDiscovery
from podwire.policy.foreign.kernel import KernelLinks
from podwire.policy.foreign.locate import locate
from podwire.runtime.clock import Clock


class OtherPlugins:
    """The pods that other plugins have wired; it has a say in what they do as their last plugin."""

    def __init__(self, config: AgentConfig, policies: PolicyPart, clock: Clock) -> None:
        self._config = config
        self._policies = policies
        self._bridges = policies.bridges
        enforcement = policies.enforcement
        self._discovery = PodDiscovery(config.node_name, policies.pods, enforcement, KernelLinks(), clock)
        policies.prepared.append(self._discovery.scanned)
        self.chain = PolicyChain(Ledger(Path(config.state_dir, "policy.db")), self, find, policies.problem)
        if self._bridges is not None:
            self._discovery.bridges_changed = self._bridges.look
            self._bridges.attached = lambda: tuple(enforcement.attached.values())
        self._restore()
        if config.cni.bin_dir:
            program.install(config.cni.bin_path)

    def _restore(self) -> None:
        with Netlink() as netlink:
            self.chain.forget_lost(wire.name for wire in bridges.read_wires(netlink))
            self._policies.enforcement.restore(tuple(_attached(one, netlink) for one in self.chain.held.values()))

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name."""
        server = CniServer(self._config.socket, self.chain.handle, Log("cni"), self.chain.before)
        return {
            "policy discovery": self._discovery.run,
            "policy bridges": self._discovery.watch,
            "policy chain": server.run,
        }

    def tell(self, bridges_lack: Callable[[str], None], not_found: Callable[[str], None]) -> None:
        """Has somebody told, in words, what bridges lack and which pods are not found; nothing: all is well."""
        if self._bridges is not None:
            self._bridges.report = bridges_lack

        def stuck(pods: frozenset[str]) -> None:
            some = ", ".join(sorted(pods)[:3]) + (", ..." if len(pods) > 3 else "")
            not_found(f"no device of {some} is known; they are shut off" if pods else "")

        self._discovery.stuck = stuck

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """A pod's containers start when its object is known and policies are in force."""
        return self._policies.before(request)

    def attach(self, one: Attachment) -> None:
        """Puts a pod's policies into the kernel.

        Raises: KernelError.
        """
        with Netlink() as netlink:
            self._policies.enforcement.attach(_attached(one, netlink))

    def detach(self, one: Attachment) -> None:
        """Forgets a pod."""
        self._policies.enforcement.detach(one.host_link)

    def samples(self) -> list[Metric]:
        """The metrics."""
        text = "Whether policies see packets between the ports of a bridge of pods (br_netfilter)."
        unseen = self._bridges.unseen if self._bridges is not None else {}
        seen: list[Metric] = [
            Sample("podwire_policy_bridge_seen", text, int(family not in missing), {"bridge": name, "family": family})
            for name, missing in sorted(unseen.items())
            for family in ("ip", "ip6")
        ]
        lost = "Pods of this node with an address and no device that is known; they are shut off."
        return [
            *seen,
            Sample("podwire_policy_pods_sought", lost, len(self._discovery.unlocated)),
            *self.chain.samples(),
        ]


def find(named: tuple[str, ...], addresses: tuple[str, ...]) -> str:
    """The node's device of a pod alone: one of those named, or the one that has the addresses; empty: none.

    Raises: KernelError.
    """
    with Netlink() as netlink:
        wires = {wire.name for wire in bridges.read_wires(netlink)}
        for name in named:
            if name in wires:
                return name
    place = locate({"": addresses}, *KernelLinks().read(), {}).get("")
    return (place.port or place.device) if place is not None else ""


def _attached(one: Attachment, netlink: Netlink) -> AttachedPod:
    bridge = next((wire.bridge for wire in bridges.read_wires(netlink) if wire.name == one.host_link), "")
    return AttachedPod(
        pod=f"{one.namespace}/{one.pod}" if one.pod else "",
        device=bridge or one.host_link,
        port=one.host_link if bridge else "",
        addresses=one.addresses,
        uid=one.uid,
    )

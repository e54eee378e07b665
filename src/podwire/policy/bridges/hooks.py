"""Whether the IP hooks see the packets between the ports of bridges (``br_netfilter``), and the ports themselves."""

from collections.abc import Iterable

from podwire.errors import KernelError
from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.observe.health import Metric, Sample
from podwire.policy.attached import AttachedPod
from podwire.policy.bridges.layout import BridgePort
from podwire.policy.compile import Compiler


class BridgeHooks:
    """The bridges of pods in one network namespace (None: that of this thread)."""

    def __init__(self, netns: NetnsPath = None) -> None:
        self._netlink = Netlink(netns)
        self.failure = ""
        """Why ``br_netfilter`` could not be turned on; empty: no failure."""
        self.unseen: dict[str, dict[str, str]] = {}
        """By bridge and family: why the IP hooks do not see packets between its ports; empty: they see them."""

    def close(self) -> None:
        """Closes the socket to the kernel."""
        self._netlink.close()

    def samples(self) -> list[Metric]:
        """The metrics."""
        text = "Whether policies see packets between the ports of a bridge of pods (br_netfilter)."
        return [
            Sample("podwire_policy_bridge_seen", text, int(family not in missing), {"bridge": name, "family": family})
            for name, missing in sorted(self.unseen.items())
            for family in ("ip", "ip6")
        ]

    def read(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The hooks that do not see packets, as in :attr:`unseen`, read for these bridges."""
        unseen = {}
        for bridge in names:
            try:
                unseen[bridge] = bridges.missing_hooks(self._netlink, bridge)
            except KernelError:
                continue
        return unseen

    def port(self, pod: AttachedPod, compiler: Compiler) -> BridgePort:
        """The port of a pod."""
        profiles = compiler.pods.get(pod.pod)
        selected = profiles is not None and (profiles.ingress is not None or profiles.egress is not None)
        isolated = frozenset(self.unseen.get(pod.device, ())) if selected else frozenset[str]()
        return BridgePort(name=pod.port, addresses=pod.addresses, isolated=isolated)

    def unknown_ports(self, attached: Iterable[AttachedPod]) -> tuple[BridgePort, ...]:
        """The ports without a pod of ``attached``, of bridges whose packets the IP hooks do not see."""
        blind = {bridge: frozenset(missing) for bridge, missing in self.unseen.items() if missing}
        if not blind:
            return ()
        known = {pod.port for pod in attached}
        wires = (wire for wire in bridges.read_wires(self._netlink) if wire.bridge in blind and wire.name not in known)
        ports = (BridgePort(name=wire.name, addresses=(), isolated=blind[wire.bridge], unknown=True) for wire in wires)
        return tuple(sorted(ports, key=lambda port: port.name))

    def enable(self) -> None:
        """Turns ``br_netfilter`` on for the bridges where it is off; a failure becomes :attr:`failure`."""
        lacking = {why for missing in self.unseen.values() for why in missing.values()}
        try:
            if not self.failure and any(bridges.MODULE in why for why in lacking):
                bridges.load_module()  # only once: a module that is not installed stays missing
            for bridge, missing in self.unseen.items():
                if missing:
                    bridges.enable_hooks(self._netlink, bridge)
        except KernelError as failure:
            self.failure = failure.detail or str(failure)
        self.unseen = self.read(self.unseen)

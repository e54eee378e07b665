"""The node of this agent: its Node object and the device that carries its addresses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from podwire.cluster.cloudinterfaces import NodeInterfaces, read_interfaces
from podwire.cluster.podleg import PodLeg
from podwire.cluster.podnetworks import NodePodNetwork
from podwire.model.node import Node
from podwire.routing.nodes import Address, LocalNode, Network, Peer, Underlay, own_node_of, pod_cidrs_of
from podwire.routing.underlay import DEFAULT_MTU


class UnderlayFinder(Protocol):
    """Finds the device that carries addresses; ``routing.machine`` does."""

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        """The device with the node's addresses."""
        ...


class PodNetworkFacts(msgspec.Struct, frozen=True):
    """Facts of the network for the wiring of pods.

    The MTUs in bytes by family, the node's addresses and pod CIDRs, the leg. ``whole``: every address of the CIDRs is
    for a pod, as a cloud assigned them. ``pod_networks`` are those from which pods may choose; empty: there is no
    choice.
    """

    mtus: Mapping[int, int]
    addresses: tuple[Address, ...]
    cidrs: tuple[Network, ...]
    leg: PodLeg | None = None
    whole: bool = False
    pod_networks: tuple[NodePodNetwork, ...] = ()


class OwnNode:
    """The node ``name``; ``nodes`` returns the present Node objects by name.

    ``run_dir`` is the directory for the files of child processes of backends.
    """

    def __init__(self, name: str, nodes: Callable[[], Mapping[str, Node]], finder: UnderlayFinder) -> None:
        self.name = name
        self.run_dir = "/run/podwire/routing"
        self.leg_obstacle = ""
        """Why pods may have no second interface; empty: they may."""
        self.plain_checksums: frozenset[str] = frozenset()
        """The tunnel devices whose packets need checksums from the kernel."""
        self.waits_for_device = False
        """Whether an interface for pods that the Node names was not in the kernel at the last call of :meth:`look`."""
        self.waits_for_api = False
        """Whether the Node object was incomplete at the last call of :meth:`look`."""
        self._nodes = nodes
        self._finder = finder
        self._underlay: Underlay | None = None

    @property
    def device(self) -> str:
        """The name of the device with the node's addresses; empty while it is not known."""
        return self._underlay.link if self._underlay is not None else ""

    def forget_underlay(self) -> None:
        """Makes the next :meth:`look` read the devices of the kernel."""
        self._underlay = None

    def look(self) -> tuple[LocalNode | None, str]:
        """The node, or why it is incomplete. Devices are read when the known device has no address of the Node."""
        node = self._nodes().get(self.name)
        self.waits_for_api = True
        if node is None:
            return None, f"no Node {self.name}"
        own = own_node_of(node)
        if not own.pod_cidrs:
            return None, f"Node {self.name} has no pod CIDR yet"
        self.waits_for_api = False
        known = self._underlay is not None and any(a.ip in own.addresses for a in self._underlay.addresses)
        if not known or self.waits_for_device or not _has_devices(self._underlay, own.annotations):
            self._underlay = self._finder.underlay(own.addresses)
        self.waits_for_device = not _has_devices(self._underlay, own.annotations)
        underlay = self._underlay
        if underlay is None:
            shown = ", ".join(str(a) for a in own.addresses) or "none"
            return None, f"no device holds an InternalIP of Node {self.name} ({shown})"
        usable = _usable(underlay, own)
        if not usable:
            missing = ", ".join(lacking(underlay, read_interfaces(own.annotations) or NodeInterfaces()))
            return None, f"no device has the hardware address of an interface for pods ({missing})"
        return LocalNode(
            name=own.name,
            addresses=own.addresses,
            pod_cidrs=usable,
            whole_cidrs=read_interfaces(own.annotations) is not None,
            underlay=underlay,
            labels=own.labels,
            annotations=own.annotations,
            run_dir=self.run_dir,
            facts=own.facts,
            leg_obstacle=self.leg_obstacle,
            plain_checksums=tuple(sorted(self.plain_checksums)),
        ), ""

    def pod_network(self) -> PodNetworkFacts | None:
        """The facts for pods on a node whose packets another program routes; None while the Node is not complete.

        The MTU is that of the device with the node's addresses. While no device has them, it is 1500 bytes.
        """
        node = self._nodes().get(self.name)
        if node is None:
            return None
        self.forget_underlay()
        me, _ = self.look()
        cidrs = pod_cidrs_of(node)
        mtu = me.underlay.mtu if me is not None else DEFAULT_MTU
        mtus: dict[int, int] = {cidr.version: mtu for cidr in cidrs}
        if me is not None:
            return PodNetworkFacts(mtus, me.addresses, me.pod_cidrs, whole=me.whole_cidrs)
        return PodNetworkFacts(mtus, (), cidrs) if cidrs else None


def _has_devices(underlay: Underlay | None, annotations: Mapping[str, str]) -> bool:
    """Whether each interface for pods has its device."""
    interfaces = read_interfaces(annotations)
    return interfaces is None or (underlay is not None and not lacking(underlay, interfaces))


def _usable(underlay: Underlay, own: Peer) -> tuple[Network, ...]:
    """The networks of pods, without those of interfaces whose devices are not there yet."""
    interfaces = read_interfaces(own.annotations)
    if interfaces is None:
        return own.pod_cidrs
    missing = lacking(underlay, interfaces)
    return tuple(n for interface in interfaces.interfaces if interface.mac not in missing for n in interface.networks)


def lacking(underlay: Underlay, interfaces: NodeInterfaces) -> tuple[str, ...]:
    """The hardware addresses of interfaces without a device."""
    macs = {device.mac for device in underlay.devices.values()}
    return tuple(interface.mac for interface in interfaces.interfaces if interface.mac.lower() not in macs)

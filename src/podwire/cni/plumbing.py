"""The kernel as CNI uses it: the node's namespace, and pods' namespaces entered for one batch each.

Deleting a device costs the kernel 16 to 28 ms under its own lock, in every way of deleting. So ``unwire`` only
removes a pod's routes and neighbours and moves its device into a group, and ``delete_detached`` deletes the whole
group, from another thread and over a socket of its own: 50 devices in the time of two (measured).
"""

import errno
from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from podwire.cni import bridgeguard, podbridge, sourceguard
from podwire.cni.bridgedevice import BridgeDevice
from podwire.cni.heldtable import HeldTable
from podwire.cni.hostports import HostPorts
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.legs import PodLegs
from podwire.cni.lostdevices import LostDevices
from podwire.cni.podhardware import PodHardware
from podwire.cni.podsysctls import PodSysctls
from podwire.cni.wiring import (
    HOST_MAC,
    NODE_OWNER,
    OWNER,
    Wiring,
    WiringFacts,
    alias_of,
    belongs,
    node_side,
    of_pod,
    plan,
)
from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import link_codec, netns, network, pods, sysctl
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.devicetuning import DeviceTuning
from podwire.kernel.filter_table import FilterTable
from podwire.kernel.firewalld import FirewalldZones
from podwire.kernel.loopback import Loopback
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.shaping import PodShaping
from podwire.kernel.uapi import RTM_DELLINK
from podwire.state.changes import diff
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import TABLE_MAIN

_NO_OWNER = OwnerMark(route_protocol=255)
"""The mark of no object: a comparison with it removes nothing."""


class GuardTables(NamedTuple):
    """The source guards of pods on the bridge and of pods with devices of their own."""

    bridge: HeldTable
    devices: HeldTable


class KernelPlumber:
    """Makes and removes pods' wiring in a node's network namespace (None: the namespace of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._netlink = Netlink(netns_path)
        self._identity = 0
        """That of the node's namespace; 0: not read yet."""
        self._legs = PodLegs(self._netlink)
        self.hardware = PodHardware(self._netlink, netns_path)
        """The hardware addresses of pods' devices."""
        self.bridge = BridgeDevice(self._netlink, netns_path)
        """The bridge of pods."""
        self.lost = LostDevices(self._netlink, self.bridge, self._legs, self.wire)
        """The devices of running pods that are gone."""
        self.guards = GuardTables(
            HeldTable(bridgeguard.FAMILY, bridgeguard.TABLE, netns_path),
            HeldTable(sourceguard.FAMILY, sourceguard.TABLE, netns_path),
        )
        """The tables that keep pods to their own addresses."""
        self.ports = HostPorts(netns_path)
        """The hostPorts of pods."""
        self.sysctls = PodSysctls(netns_path)
        """The sysctls of pods whose changes the kernel does not report."""
        self.loopback = Loopback()
        """The devices ``lo`` of pods."""
        self.tuning = DeviceTuning()
        """The devices and sysctls of pods, for the plugin ``tuning``."""
        self.shaping = PodShaping(netns_path)
        """The limits of pods, for the plugin ``bandwidth``."""
        self.filter = FilterTable(netns_path)
        """The table of iptables, for the plugin ``firewall``."""
        self.zones = FirewalldZones()
        """The zones of firewalld, for the same plugin."""

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        self._netlink.close()
        self.ports.table.close()
        for table in self.guards:
            table.close()
        self.sysctls.close()

    def prepare(self, families: Collection[int]) -> None:
        """Turns on IPv6 forwarding of the node when pods have IPv6; IPv4 forwarding is set for each pod's device.

        Raises: KernelError.
        """
        if 6 in families:
            sysctl.write("net/ipv6/conf/all/forwarding", "1", self._netns_path)

    def wire(self, planned: Wiring, netns_path: str) -> bool:
        """Creates a pod's devices; returns whether packets pass already (:meth:`is_ready`).

        If a device of the same name exists, all detached devices are deleted and it is tried again: a namespace may be
        used again right after DEL.
        """
        try:
            ready = pods.wire(self._netlink, netns_path, planned.host, planned.first)
        except KernelExists:
            pods.sweep(self._netns_path)  # If there were none, the deletion in the background was faster.
            ready = pods.wire(self._netlink, netns_path, planned.host, planned.first)
        if planned.leg is None:
            return ready
        self._legs.hold(planned, netns_path)
        return self.is_ready(planned, netns_path)

    def is_ready(self, planned: Wiring, netns_path: str) -> bool:
        """Whether packets to and from a wired pod pass.

        Raises: KernelNotFound when the pod is gone; KernelError.
        """
        return pods.is_ready(self._netlink, netns_path, planned.host, planned.pod)

    def unwire(self, attachments: Iterable[Attachment]) -> None:
        """Deletes pods' routes and neighbours, and detaches their devices for ``delete_detached``."""
        every = tuple(attachments)
        links = {link.name: link.index for x in every if (link := self._link_of(x)) is not None}
        present = [attachment for attachment in every if attachment.host_link in links]
        self._legs.delete_all(present)
        self._legs.delete_rules(present)
        pods.unwire(self._netlink, [node_side(attachment, WiringFacts()) for attachment in present], links)
        lost = [attachment for attachment in every if attachment.bridge and attachment not in present]
        pods.delete_paths(self._netlink, [node_side(attachment, WiringFacts()) for attachment in lost])

    def delete_detached(self, addresses: Collection[str] = ()) -> None:
        """Deletes all detached devices; takes some 20 ms for any number of them.

        The tracked connections of ``addresses`` are deleted too: they must not apply to the next pod with the address.
        """
        pods.sweep(self._netns_path)
        if addresses and self.ports.table.supported:
            with Conntrack(self._netns_path) as conntrack:
                conntrack.forget_addresses(addresses)

    def rewire(self, attachments: Iterable[Attachment], node: WiringFacts) -> list[str]:
        """Gives running pods another MTU (both ends of the device and the default routes) and another leg, or none.

        Returns the failures of single pods as text: a program in a pod may have changed what is in its namespace.

        Raises: KernelNotFound when the uplink of the leg does not exist; KernelError when it carries devices of another
        kind (EBUSY).
        """
        failures = []
        present = [x for x in attachments if self._link_of(x) is not None and netns.exists(x.netns)]
        if node.leg is not None:
            network.read_link(self._netlink, node.leg.uplink)
            self._legs.delete_outdated(present, node)
        for attachment in present:
            interfaces = [x for x in present if x.netns == attachment.netns]
            desired = replace(plan(attachment, node), pod=of_pod(interfaces, node))
            network.apply(self._netlink, NetworkState(links=(Link(attachment.host_link, mtu=node.mtu),)), _NO_OWNER)
            try:
                if desired.leg is not None:
                    self._legs.hold(desired, attachment.netns)
                    continue
                with Netlink(attachment.netns) as pod:
                    network.apply(pod, desired.pod, OWNER)
                    self._legs.delete(pod, attachment)
            except KernelError as failure:
                if failure.errno == errno.EBUSY:
                    raise
                if netns.exists(attachment.netns):
                    failures.append(f"{alias_of(attachment)}: {failure}")
        return failures

    def present(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """The attachments whose device exists and is not detached; another program may have changed its alias."""
        links = {link.name: link for link in network.read_links(self._netlink)}
        live = {name: link for name, link in links.items() if link.group != network.DELETE_GROUP}
        return [
            attachment
            for attachment in attachments
            if (link := live.get(attachment.host_link)) is not None
            if belongs(link, attachment) or (link.kind, link.mac) == ("veth", HOST_MAC)
        ]

    def hold(self, state: NetworkState) -> list[str]:
        """Makes the node's namespace hold all routes, neighbours and rules of pods; returns the failures as text.

        Costs 0.13 ms a pod when nothing has changed, 0.22 ms with sysctls (measured at 100 pods).
        """
        refused: list[KernelError] = []
        try:
            self.bridge.hold(state)
        except KernelError as failure:
            if failure.errno != errno.EEXIST:
                return [str(failure)]  # The bridge may be there, with routes that an incomplete state would remove.
            refused, state = [failure], podbridge.without(state)
        # A pod's device that has gone meanwhile must not be added here: it would not lead to the pod.
        links = tuple(replace(link, kind="") if link.kind == "veth" else link for link in state.links)
        state = replace(state, links=links)
        report = network.apply(self._netlink, state, NODE_OWNER, {route.key for route in state.routes})
        return [str(failure) for failure in (*refused, *report.failed)]

    def watch(self) -> Monitor:
        """Reports changes of the namespace by other programs; for devices, addresses and neighbours also podwire's."""
        monitor = Monitor(self._netns_path, ("link", "address", "route", "neighbour", "rule", "sysctl"))
        monitor.ignore(self._netlink.port)
        return monitor

    def missing(self, planned: Wiring, netns_path: str) -> list[str]:
        """The lines of a wiring that the kernel does not hold.

        A chained plugin may change the hardware address and the MTU of the pod's end; neighbour entries must have the
        hardware addresses that the devices have.
        """
        paths = tuple(x.path for x in planned.host.sysctls)
        outer = network.read(self._netlink, sysctls=paths)
        with Netlink(netns_path) as pod:
            inner = network.read(pod, sysctls=tuple(x.path for x in planned.pod.sysctls))
        (host,) = planned.host.links
        own, peer = outer.link(host.master or host.name), inner.link(host.peer)
        node_wants = _with_macs(planned.host, peer.mac if peer is not None else "")
        pod_wants = _with_macs(_as_changed(planned.pod, inner), own.mac if own is not None else "")
        return [*_missing(outer, node_wants), *_missing(inner, pod_wants)]

    def read(self) -> NetworkState:
        """What the node's namespace holds, without detached devices."""
        state = network.read(self._netlink)
        return replace(state, links=tuple(link for link in state.links if link.group != network.DELETE_GROUP))

    def remove(self, names: Iterable[str]) -> None:
        """Removes devices of the node; missing devices are ignored."""
        indexes = {link.name: link.index for link in network.read_links(self._netlink)}
        bodies = [(name, link_codec.header(indexes[name])) for name in names if name in indexes]
        self._netlink.batch([Message(RTM_DELLINK, 0, body, "delete", f"link {name}") for name, body in bodies])

    def default_families(self, netns_path: str) -> frozenset[int]:
        """The IP families in which a pod has a default route in its main table.

        Raises: KernelError.
        """
        with Netlink(netns_path) as pod:
            routes = network.read_paths(pod).routes
        defaults = {"default": 4, "::/0": 6}
        unicast = (x for x in routes if x.table == TABLE_MAIN and x.kind == "unicast")
        return frozenset(defaults[route.dst] for route in unicast if route.dst in defaults)

    def is_network(self, netns_path: str) -> bool:
        """Whether a path leads to a network namespace."""
        return netns.is_network(netns_path)

    def is_own(self, netns_path: str) -> bool:
        """Whether a namespace is the node's own."""
        if not self._identity:
            self._identity = netns.identity(self._netns_path)
        return netns.identity(netns_path) == self._identity

    def _link_of(self, attachment: Attachment) -> Link | None:
        try:
            link = network.read_link(self._netlink, attachment.host_link)
        except KernelNotFound:
            return None
        return link if belongs(link, attachment) else None


def _with_macs(state: NetworkState, mac: str) -> NetworkState:
    """A state whose neighbours and forwarding entries have the hardware address that the other end really has."""
    neighbours = tuple(replace(x, mac=mac or x.mac) for x in state.neighbours)
    return replace(state, neighbours=neighbours, fdb=tuple(replace(x, mac=mac or x.mac) for x in state.fdb))


def _as_changed(pod: NetworkState, have: NetworkState) -> NetworkState:
    """The planned state of a pod with the MTU that its devices have: a chained plugin may lower it."""
    mtus = {link.name: link.mtu for link in have.links}
    present = {route.key: route.mtu for route in have.routes}
    links = tuple(replace(link, mtu=mtus.get(link.name, link.mtu)) for link in pod.links)
    routes = tuple(replace(route, mtu=present.get(route.key, route.mtu)) for route in pod.routes)
    return replace(pod, links=links, routes=routes)


def _missing(have: NetworkState, want: NetworkState) -> list[str]:
    links = tuple(replace(x, mac="", peer="") for x in want.links)
    return [
        str(step.value) for step in diff(have, replace(want, links=links), _NO_OWNER).steps if step.verb != "delete"
    ]

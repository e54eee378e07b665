"""The kernel as CNI uses it: the node's namespace, and pods' namespaces entered for one batch each.

Deleting a device costs the kernel 16 to 28 ms under its own lock, in every way of deleting. So ``unwire`` only
removes a pod's routes and neighbours and moves its device into a group, and ``delete_detached`` deletes the whole
group, from another thread and over a socket of its own: 50 devices in the time of two (measured).
"""

import contextlib
import errno
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from podwire.cni import staleflows
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ports import TABLE, held_in
from podwire.cni.spec import PortMapping
from podwire.cni.wiring import LEG, OWNER, Wiring, WiringFacts, alias_of, belongs, is_leg, of_pod, plan
from podwire.errors import KernelError, KernelExists, KernelNotFound, Unsupported
from podwire.kernel import link_codec, netns, network, pods, sysctl
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.link_codec import ReadLink
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.kernel.peer_watch import PeerWatch
from podwire.kernel.uapi import RTM_DELLINK
from podwire.state.changes import diff
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Table
from podwire.state.route import TABLE_MAIN

_NO_OWNER = OwnerMark(route_protocol=255)
"""The mark of no object: a comparison with it removes nothing."""


class KernelPlumber:
    """Makes and removes pods' wiring in a node's network namespace (None: the namespace of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._netlink = Netlink(netns_path)
        self._with_legs = False
        """Whether pods may have legs: DEL need not look into the namespaces of pods that have none."""
        self._nft: Nft | None = None
        self._nft_missing: Unsupported | None = None
        self._ports: TableWatch | None = None
        try:
            self._nft = Nft(netns_path)
            self._ports = TableWatch(netns_path)
        except Unsupported as missing:
            self._nft_missing = missing

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        self._netlink.close()
        if self._nft is not None:
            self._nft.close()
        if self._ports is not None:
            self._ports.close()

    def prepare(self, families: Collection[int]) -> None:
        """Turns on IPv6 forwarding of the node when pods have IPv6; IPv4 forwarding is set for each pod's device.

        Raises: KernelError.
        """
        if 6 in families:
            sysctl.write("net/ipv6/conf/all/forwarding", "1", self._netns_path)

    def wire(self, planned: Wiring, netns_path: str) -> bool:
        """Creates a pod's devices; returns whether packets pass already (:meth:`is_ready`).

        If a device of the same name exists, all detached devices are deleted first: a namespace may be used again
        right after DEL.
        """
        try:
            ready = pods.wire(self._netlink, netns_path, planned.host, planned.first)
        except KernelExists:
            if not pods.sweep(self._netns_path):
                raise
            ready = pods.wire(self._netlink, netns_path, planned.host, planned.first)
        if planned.leg is None:
            return ready
        self._hold_leg(planned, netns_path)
        return self.is_ready(planned, netns_path)

    def is_ready(self, planned: Wiring, netns_path: str) -> bool:
        """Whether packets to and from a wired pod pass.

        Raises: KernelNotFound when the pod is gone; KernelError.
        """
        return pods.is_ready(self._netlink, netns_path, planned.host, planned.pod)

    def unwire(self, attachments: Iterable[Attachment]) -> None:
        """Deletes pods' routes and neighbours, and detaches their devices for ``delete_detached``."""
        present = [attachment for attachment in attachments if self._link_of(attachment) is not None]
        if self._with_legs:
            self._delete_legs(present)
        self._delete_rules(present)
        pods.unwire(self._netlink, [plan(attachment, WiringFacts()).host for attachment in present])

    def delete_detached(self, addresses: Collection[str] = ()) -> None:
        """Deletes all detached devices; takes some 20 ms for any number of them.

        The tracked connections of ``addresses`` are deleted too: they must not apply to the next pod with the address.
        """
        pods.sweep(self._netns_path)
        if addresses and self._nft is not None:
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
            self._delete_outdated_legs(present, node)
        for attachment in present:
            interfaces = [x for x in present if x.netns == attachment.netns]
            wanted = replace(plan(attachment, node), pod=of_pod(interfaces, node))
            network.apply(self._netlink, NetworkState(links=(Link(attachment.host_link, mtu=node.mtu),)), _NO_OWNER)
            try:
                if wanted.leg is not None:
                    self._hold_leg(wanted, attachment.netns)
                    continue
                with Netlink(attachment.netns) as pod:
                    network.apply(pod, wanted.pod, OWNER)
                    self._delete_leg(pod, attachment)
            except KernelError as failure:
                if failure.errno == errno.EBUSY:
                    raise
                if netns.exists(attachment.netns):
                    failures.append(f"{alias_of(attachment)}: {failure}")
        return failures

    def _hold_leg(self, planned: Wiring, netns_path: str) -> None:
        """Makes a pod have its leg, and all the state that goes with it.

        Raises: KernelNotFound when the uplink or the pod is gone; KernelError.
        """
        assert planned.leg is not None, "the caller checks it"
        self._with_legs = True
        uplink = network.read_link(self._netlink, planned.leg.device).index
        with Netlink(netns_path) as pod:
            if not _is_current(pods.read_leg(pod, planned.leg.name), planned.leg, uplink, pod):
                pods.make_leg(self._netlink, netns_path, planned.leg)
            for value in planned.pod.sysctls:
                sysctl.write(value.path, value.value, netns_path)
            network.apply(pod, planned.pod, OWNER).check()

    def _delete_outdated_legs(self, attachments: Iterable[Attachment], node: WiringFacts) -> None:
        """Deletes legs of another kind or on another uplink than planned, before any new one is made.

        The kernel refuses devices of kind macvlan and ipvlan on one uplink.

        Raises: KernelNotFound when the uplink does not exist; KernelError.
        """
        for attachment in attachments:
            planned = plan(attachment, node).leg
            assert planned is not None, "the caller checks it"
            uplink = network.read_link(self._netlink, planned.device).index
            with contextlib.suppress(KernelNotFound), Netlink(attachment.netns) as pod:
                _is_current(pods.read_leg(pod, planned.name), planned, uplink, pod)

    def _delete_leg(self, pod: Netlink, attachment: Attachment) -> None:
        """Deletes the leg of a pod; another device of the same name stays."""
        leg = pods.read_leg(pod, LEG)
        if leg is not None and is_leg(leg.link, attachment):
            pods.delete_leg(pod, leg)

    def _delete_legs(self, attachments: Iterable[Attachment]) -> None:
        """Deletes the legs of pods whose namespace may be used again; the kernel takes some 20 ms for each."""
        for attachment in attachments:
            with contextlib.suppress(KernelNotFound):
                if netns.exists(attachment.netns):
                    with Netlink(attachment.netns) as pod:
                        self._delete_leg(pod, attachment)

    def _delete_rules(self, attachments: Iterable[Attachment]) -> None:
        """Deletes the rules of interfaces beside others, in namespaces that stay."""
        for attachment in attachments:
            rules = plan(attachment, WiringFacts()).pod.rules
            if rules and netns.exists(attachment.netns):
                with contextlib.suppress(KernelNotFound), Netlink(attachment.netns) as pod:
                    pods.delete_rules(pod, rules)

    def present(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """The attachments whose device exists, is complete and is not detached."""
        links = {link.name: link for link in network.read_links(self._netlink)}
        live = {name for name, link in links.items() if link.alias and link.group != network.DELETE_GROUP}
        return [
            attachment
            for attachment in attachments
            if attachment.host_link in live and belongs(links[attachment.host_link], attachment)
        ]

    def hold(self, state: NetworkState) -> list[str]:
        """Makes the node's namespace hold all routes, neighbours and rules of pods; returns the failures as text.

        Costs 0.13 ms a pod when nothing has changed, 0.22 ms with sysctls (measured at 100 pods).
        """
        report = network.apply(self._netlink, state, OWNER)
        return [str(failure) for failure in report.failed]

    def watch(self) -> Monitor:
        """Reports changes of the namespace by other programs; for devices, addresses and neighbours also podwire's."""
        monitor = Monitor(self._netns_path, ("link", "address", "route", "neighbour", "sysctl"))
        monitor.ignore(self._netlink.port)
        return monitor

    def watch_peers(self) -> PeerWatch:
        """Reports changes of pods' ends of the devices.

        Raises: KernelError when the process may not watch them.
        """
        return PeerWatch(self._netns_path)

    def pod_mac(self, attachment: Attachment) -> str:
        """The hardware address of a pod's interface; empty when its namespace cannot be opened or has none.

        Raises: KernelError.
        """
        if not attachment.netns or not netns.exists(attachment.netns):
            return ""
        with contextlib.suppress(KernelNotFound), Netlink(attachment.netns) as pod:
            link = network.read_raw_link(pod, attachment.key.ifname).link
            return link.mac if link.index in pods.derived_indexes(attachment.host_link) else ""
        return ""

    def set_neighbours(self, attachment: Attachment, planned: Wiring) -> None:
        """Writes the neighbour entries of both ends of a pod's device.

        Raises: KernelError.
        """
        with contextlib.suppress(KernelNotFound):
            pods.set_neighbours(self._netlink, attachment.host_link, planned.host.neighbours)
            with Netlink(attachment.netns) as pod:
                pods.set_neighbours(pod, attachment.key.ifname, planned.pod.neighbours)

    def watch_ports(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` in the running loop when the hostPort table is not as held, within about a second."""
        if self._ports is not None:
            self._ports.attach(changed)

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
        own, peer = outer.link(host.name), inner.link(host.peer)
        node_wants = _with_macs(planned.host, peer.mac if peer is not None else "")
        pod_wants = _with_macs(_as_changed(planned.pod, inner), own.mac if own is not None else "")
        return [*_missing(outer, node_wants), *_missing(inner, pod_wants)]

    def ports_missing(self) -> bool:
        """Whether the hostPort table differs from the one that is held.

        Raises: KernelError.
        """
        return self._ports is not None and self._ports.drifted()

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
        return netns.identity(netns_path) == netns.identity(self._netns_path)

    def hold_ports(self, table: Table | None) -> None:
        """Makes the kernel hold the hostPort table; fails for pods with a hostPort when the kernel lacks nftables.

        Raises: KernelError.
        """
        if self._nft is None:
            if table is not None and self._nft_missing is not None:
                raise self._nft_missing
            return
        if self._ports is not None:
            self._ports.expect(() if table is None else (table,))
        if table is None:
            self._nft.delete("inet", TABLE)
        else:
            self._nft.apply(table)

    def read_ports(self) -> dict[str, tuple[PortMapping, ...]]:
        """The hostPorts that the kernel holds, by the address of the pod.

        Raises: KernelError.
        """
        table = self._nft.read("inet", TABLE) if self._nft is not None else None
        return {} if table is None else held_in(table)

    def forget_stale(self, attachment: Attachment) -> None:
        """Deletes tracked connections that keep packets to the pod's hostPorts from it.

        Raises: KernelError.
        """
        if self._nft is not None:
            node = {x.cidr.partition("/")[0] for x in network.read_paths(self._netlink).addresses}
            with Conntrack(self._netns_path) as conntrack:
                staleflows.forget(conntrack, attachment.ports, attachment.addresses, node)

    def _link_of(self, attachment: Attachment) -> Link | None:
        try:
            link = network.read_link(self._netlink, attachment.host_link)
        except KernelNotFound:
            return None
        return link if belongs(link, attachment) else None


def _is_current(leg: ReadLink | None, planned: Link, uplink: int, pod: Netlink) -> bool:
    """Whether a pod has its leg as planned; deletes one that differs in its kind, its mode or its uplink."""
    if leg is None:
        return False
    if leg.lower == uplink and (leg.link.kind, leg.link.mode) == (planned.kind, planned.mode):
        return True
    pods.delete_leg(pod, leg)
    return False


def _with_macs(state: NetworkState, mac: str) -> NetworkState:
    """A state whose neighbours have the hardware address that the other end really has."""
    return replace(state, neighbours=tuple(replace(x, mac=mac or x.mac) for x in state.neighbours))


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

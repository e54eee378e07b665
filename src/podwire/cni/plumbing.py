"""The kernel as CNI uses it: the node's namespace, and pods' namespaces entered for one batch each.

Taking a device away costs the kernel 16 to 28 ms under its own lock, however it is asked. So ``unwire`` only
removes a pod's routes and neighbours and moves its device into a group, and ``delete_detached`` deletes the whole
group, from another thread and over a socket of its own: 50 devices in the time of two (measured).
"""

from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec.structs import replace

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ports import TABLE
from podwire.cni.wiring import OWNER, Node, Wiring, belongs, plan
from podwire.errors import KernelExists, KernelNotFound, Unsupported
from podwire.kernel import link_codec, netns, network, pods, sysctl
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.nft import Nft
from podwire.kernel.uapi import RTM_DELLINK
from podwire.state.changes import diff
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Table

_NOBODY = OwnerMark(route_protocol=255)
"""An owner of nothing: a comparison with it never removes."""


class KernelPlumber:
    """Pods' wiring in a node's network namespace (None: the one of this thread)."""

    def __init__(self, place: Path | str | None = None) -> None:
        self._place = place
        self._netlink = Netlink(place)
        self._nft: Nft | None = None
        self._lacks: Unsupported | None = None
        try:
            self._nft = Nft(place)
        except Unsupported as missing:
            self._lacks = missing

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        self._netlink.close()
        if self._nft is not None:
            self._nft.close()

    def prepare(self, families: Collection[int]) -> None:
        """Lets the node forward IPv6 where pods have it; IPv4 forwarding is a matter of each pod's device.

        Raises: KernelError.
        """
        if 6 in families:
            sysctl.write("net/ipv6/conf/all/forwarding", "1", self._place)

    def wire(self, planned: Wiring, place: str) -> bool:
        """Makes a pod's devices; whether packets pass already (:meth:`is_ready`).

        If a device of the same name exists, all detached devices are deleted first: a namespace may be used again
        right after DEL.
        """
        try:
            return pods.wire(self._netlink, place, planned.host, planned.pod)
        except KernelExists:
            if not pods.sweep(self._place):
                raise
            return pods.wire(self._netlink, place, planned.host, planned.pod)

    def is_ready(self, planned: Wiring, place: str) -> bool:
        """Whether packets to and from a wired pod pass.

        Raises: KernelNotFound when the pod is gone; KernelError.
        """
        return pods.is_ready(self._netlink, place, planned.host, planned.pod)

    def unwire(self, ones: Iterable[Attachment]) -> None:
        """Takes pods' routes and neighbours away, and detaches their devices for ``delete_detached``."""
        present = [one for one in ones if self._link_of(one) is not None]
        pods.unwire(self._netlink, [plan(one, Node()).host for one in present])

    def delete_detached(self, addresses: Collection[str] = ()) -> None:
        """Deletes all detached devices; takes some 20 ms for any number of them.

        The tracked connections of ``addresses`` are deleted too: the next pod with such an address must not meet them.
        """
        pods.sweep(self._place)
        if addresses and self._nft is not None:
            with Conntrack(self._place) as conntrack:
                conntrack.forget_addresses(addresses)

    def rewire(self, ones: Iterable[Attachment], node: Node) -> None:
        """Gives running pods another MTU: both ends of the device and the default routes."""
        for one in ones:
            if self._link_of(one) is None or not netns.exists(one.netns):
                continue
            wanted = plan(one, node)
            network.apply(self._netlink, NetworkState(links=(Link(one.host_link, mtu=node.mtu),)), _NOBODY)
            with Netlink(one.netns) as pod:
                network.apply(pod, wanted.pod, OWNER)

    def present(self, ones: Iterable[Attachment]) -> list[Attachment]:
        """The attachments whose device exists, is complete and is not detached."""
        links = {link.name: link for link in network.read_links(self._netlink)}
        live = {name for name, link in links.items() if link.alias and link.group != network.DELETE_GROUP}
        return [one for one in ones if one.host_link in live and belongs(links[one.host_link], one)]

    def hold(self, state: NetworkState) -> list[str]:
        """Makes the node's namespace hold all routes and neighbours of pods; what failed, in words.

        Costs 0.13 ms a pod when nothing is to be done, 0.22 with sysctls (measured at 100 pods).
        """
        report = network.apply(self._netlink, state, OWNER)
        return [str(failure) for failure in report.failed]

    def watch(self) -> Monitor:
        """Changes of the namespace by others; of devices, addresses and neighbours also one's own."""
        monitor = Monitor(self._place, ("link", "address", "route", "neighbour", "sysctl"))
        monitor.ignore(self._netlink.port)
        return monitor

    def missing(self, planned: Wiring, place: str) -> list[str]:
        """The lines of a wiring that the kernel does not hold; a changed hardware address is no fault."""
        paths = tuple(x.path for x in planned.host.sysctls)
        found = _missing(network.read(self._netlink, sysctls=paths), planned.host)
        with Netlink(place) as pod:
            return [*found, *_missing(network.read(pod), planned.pod)]

    def read(self) -> NetworkState:
        """What the node's namespace holds."""
        return network.read(self._netlink)

    def remove(self, names: Iterable[str]) -> None:
        """Removes devices of the node; those that are gone do no harm."""
        indexes = {link.name: link.index for link in network.read_links(self._netlink)}
        bodies = [(name, link_codec.header(indexes[name])) for name in names if name in indexes]
        self._netlink.batch([Message(RTM_DELLINK, 0, body, "delete", f"link {name}") for name, body in bodies])

    def is_own(self, place: str) -> bool:
        """Whether a namespace is the node's own."""
        return netns.identity(place) == netns.identity(self._place)

    def hold_ports(self, table: Table | None) -> None:
        """Makes the kernel hold the hostPort table; without nftables there is none, and pods with a hostPort fail.

        Raises: KernelError.
        """
        if self._nft is None:
            if table is not None and self._lacks is not None:
                raise self._lacks
        elif table is None:
            self._nft.delete("inet", TABLE)
        else:
            self._nft.apply(table)

    def _link_of(self, one: Attachment) -> Link | None:
        try:
            link = network.read_link(self._netlink, one.host_link)
        except KernelNotFound:
            return None
        return link if belongs(link, one) else None


def _missing(have: NetworkState, want: NetworkState) -> list[str]:
    links = tuple(replace(x, mac="", peer="") for x in want.links)
    known = {x.key for x in have.neighbours}
    neighbours = tuple(x for x in want.neighbours if x.key not in known)
    rest = replace(want, links=links, neighbours=neighbours)
    return [str(step.value) for step in diff(have, rest, _NOBODY).steps if step.verb != "delete"]

"""The hardware addresses of the devices of pods, and the neighbour entries that name them."""

import contextlib

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.wiring import Wiring
from podwire.errors import KernelNotFound
from podwire.kernel import netns, network, pods
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.peer_watch import PeerWatch
from podwire.state.network import NetworkState


class PodHardware:
    """Reads and watches the hardware addresses of pods' interfaces in the kernel."""

    def __init__(self, netlink: Netlink, netns_path: NetnsPath) -> None:
        """``netlink`` is open in the node's network namespace, whose path is ``netns_path``."""
        self._netlink = netlink
        self._netns_path = netns_path

    def watch(self) -> PeerWatch:
        """Reports changes of pods' ends of the devices.

        Raises: KernelError when the process may not watch them.
        """
        return PeerWatch(self._netns_path)

    def mac(self, attachment: Attachment) -> str:
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
        """Writes the neighbour entries of both ends of a pod's device, and the forwarding entry of a bridge's port.

        Raises: KernelError.
        """
        with contextlib.suppress(KernelNotFound):
            pods.set_neighbours(self._netlink, attachment.device, planned.host.neighbours)
            network.add(self._netlink, NetworkState(fdb=planned.host.fdb)).check()
            with Netlink(attachment.netns) as pod:
                pods.set_neighbours(pod, attachment.key.ifname, planned.pod.neighbours)

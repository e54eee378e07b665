"""The bridge of pods in the kernel: made when it is missing, told from devices of other programs.

:mod:`podwire.cni.podbridge` plans it.
"""

import contextlib
import errno

from msgspec.structs import replace

from podwire.cluster.podbridge import BRIDGE, is_pod_bridge
from podwire.cni import podbridge
from podwire.cni.wiring import HOST_MAC
from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import network, sysctl
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark

_NO_OWNER = OwnerMark(route_protocol=255)
"""The mark of no object: a comparison with it removes nothing."""


class BridgeDevice:
    """The bridge in a node's network namespace; ``netlink`` is a socket there."""

    def __init__(self, netlink: Netlink, netns_path: NetnsPath) -> None:
        self._netlink = netlink
        self._netns_path = netns_path

    def hold(self, planned: NetworkState) -> None:
        """Makes the node have the bridge; costs one message when nothing differs in the device.

        Raises: KernelError, also when another program has a device of this name.
        """
        link = planned.link(BRIDGE)
        if link is None:
            return
        held = self._read()
        if held is not None and (held.mtu, held.mac, held.up) == (link.mtu, link.mac, True):
            return
        # Without its ports: with them the kernel gives the bridge a link-local address at once.
        addresses = tuple(address for address in planned.addresses if address.link == BRIDGE)
        sysctls = tuple(value for value in planned.sysctls if f"/{BRIDGE}/" in value.path)
        network.apply(
            self._netlink, NetworkState(links=(link,), addresses=addresses, sysctls=sysctls), _NO_OWNER
        ).check()
        with contextlib.suppress(KernelNotFound):  # A kernel without IPv6 gives no link-local address either.
            sysctl.write(podbridge.address_mode_path(), "1", self._netns_path)

    def close_loopback(self) -> None:
        """Keeps packets of the bridge from the node's loopback network; without effect when there is no bridge.

        Raises: KernelError.
        """
        with contextlib.suppress(KernelNotFound):
            if is_pod_bridge(network.read_link(self._netlink, BRIDGE)):
                sysctl.write(podbridge.loopback_path(), "0", self._netns_path)

    def has_index(self, index: int) -> bool:
        """Whether the bridge has an interface index."""
        try:
            return network.read_link(self._netlink, BRIDGE).index == index
        except KernelError:
            return False

    def _read(self) -> Link | None:
        """The bridge; None when there is none.

        Raises: KernelError when the device is that of another program.
        """
        try:
            link = network.read_link(self._netlink, BRIDGE)
        except KernelNotFound:
            return None
        if is_pod_bridge(link):
            return link
        if (link.kind, link.mac) == ("bridge", HOST_MAC):
            return replace(link, up=False)  # Without the alias: an agent was killed, or another program changed it.
        raise KernelError("add", f"link {BRIDGE}", errno.EEXIST, f"another program has this device: {link}")

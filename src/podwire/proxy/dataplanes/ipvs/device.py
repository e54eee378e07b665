"""The device of mode ``ipvs``: it holds the addresses of Services, so that packets to them reach IPVS."""

from collections.abc import Collection, Iterable

import msgspec

from podwire.errors import KernelNotFound
from podwire.kernel import network
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.network import Report
from podwire.kernel.route_codec import encode_address
from podwire.kernel.uapi import NLM_F_CREATE, NLM_F_REPLACE, RTM_DELADDR, RTM_NEWADDR
from podwire.proxy import dataplane
from podwire.proxy.dataplanes.ipvs.names import DEVICE
from podwire.proxy.servicemap import IpvsSettings
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Address, Sysctl

OWNER = msgspec.structs.replace(dataplane.OWNER, links=(DEVICE,))


def sysctls(settings: IpvsSettings) -> tuple[Sysctl, ...]:
    """The kernel parameters of the namespace that this mode needs, with the values of kube-proxy.

    Connection tracking translates replies. The kernel forgets connections and affinity to a removed real server.
    """
    values = {
        "net/ipv4/vs/conntrack": "1",
        "net/ipv4/vs/expire_nodest_conn": "1",
        "net/ipv4/vs/expire_quiescent_template": "1",
    }
    if settings.strict_arp:
        values |= {"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2"}
    return tuple(Sysctl(path, value) for path, value in values.items())


def device_state(addresses: Iterable[str], settings: IpvsSettings) -> NetworkState:
    """The device with its addresses; it stays down, because the kernel accepts packets to its addresses anyway."""
    return NetworkState(
        links=(Link(DEVICE, kind="dummy", up=False, alias=OWNER.alias_prefix),),
        addresses=tuple(Address(DEVICE, address) for address in addresses),
        sysctls=sysctls(settings),
    )


class IpvsDevice:
    """The device in one network namespace (None: that of this process)."""

    def __init__(self, netns_path: NetnsPath) -> None:
        self._netlink = Netlink(netns_path)
        self._index = 0
        """The interface index; 0 before :meth:`hold`."""

    def close(self) -> None:
        """Closes the socket to the kernel; the device stays."""
        self._netlink.close()

    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """The addresses of the node's other devices, and the addresses of the device; link-local ones are left out.

        Raises: KernelError.
        """
        own: set[str] = set()
        bound: set[str] = set()
        for entry in network.read_paths(self._netlink).addresses:
            address = entry.cidr.partition("/")[0]
            if not address.startswith("fe80:"):
                (bound if entry.link == DEVICE else own).add(address)
        return frozenset(own), frozenset(bound)

    def create(self, settings: IpvsSettings) -> list[str]:
        """Creates the device if it does not exist.

        The device is created first and removed last: cleaning up looks for the device to find the other state.

        Raises: KernelError.
        """
        if any(link.name == DEVICE for link in network.read_links(self._netlink)):
            return []
        device = msgspec.structs.replace(device_state((), settings), sysctls=())
        return list(map(str, network.add(self._netlink, device).check().applied))

    def hold(self, addresses: Iterable[str], settings: IpvsSettings) -> Report:
        """Makes the device hold exactly these addresses.

        Raises: KernelError.
        """
        report = network.apply(self._netlink, device_state(addresses, settings), OWNER).check()
        self._index = network.read_link(self._netlink, DEVICE).index
        return report

    def bind(self, addresses: Collection[str]) -> None:
        """Adds addresses to the device.

        Raises: KernelError.
        """
        self._send(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, addresses, "add")

    def unbind(self, addresses: Collection[str]) -> None:
        """Removes addresses from the device.

        Raises: KernelError.
        """
        self._send(RTM_DELADDR, 0, addresses, "delete")

    def _send(self, kind: int, flags: int, addresses: Collection[str], verb: str) -> None:
        values = [Address(DEVICE, address, proto=OWNER.route_protocol) for address in addresses]
        messages = [Message(kind, flags, encode_address(x, {DEVICE: self._index}), verb, x) for x in values]
        for failure in self._netlink.batch(messages).values():
            if verb != "delete" or not isinstance(failure, KernelNotFound):
                raise failure

    def delete(self) -> None:
        """Removes the device with its addresses.

        Raises: KernelError.
        """
        network.remove(self._netlink, OWNER).check()

    def is_of_kube_proxy(self) -> bool:
        """Whether the device exists without our alias: then kube-proxy created it.

        Raises: KernelError.
        """
        device = next((link for link in network.read_links(self._netlink) if link.name == DEVICE), None)
        return device is not None and not dataplane.OWNER.owns_link(device)


def exists(netns_path: NetnsPath) -> bool:
    """Whether a namespace has the device, podwire's or kube-proxy's.

    Raises: KernelError.
    """
    with Netlink(netns_path) as netlink:
        return any(link.name == DEVICE for link in network.read_links(netlink))

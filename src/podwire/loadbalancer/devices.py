"""The devices on which a node answers for addresses of load balancers."""

from collections.abc import Callable, Iterable

from podwire.errors import KernelError
from podwire.kernel import leased_addresses, neighbour_announcement
from podwire.kernel.leased_addresses import LeasedAddress
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.observe.log import Log


class AnsweringDevices:
    """The devices of one network namespace (None: that of this thread)."""

    def __init__(self, node_addresses: Callable[[], tuple[str, ...]], netns: NetnsPath = None) -> None:
        """``node_addresses`` returns the addresses of the node, the device of which answers by default."""
        self._node_addresses = node_addresses
        self._netns = netns
        self._netlink = Netlink(netns)
        self._log = Log("loadbalancer")

    def close(self) -> None:
        """Closes the socket; addresses stay until they expire."""
        self._netlink.close()

    def own_device(self) -> str:
        """The device with the node's own address; empty when there is none now."""
        try:
            return leased_addresses.device_with(self._netlink, self._node_addresses())
        except KernelError as failure:
            self._log.warning("cannot read the devices", problem=failure)
            return ""

    def read(self) -> frozenset[LeasedAddress]:
        """The addresses of load balancers that are on devices."""
        return leased_addresses.read(self._netlink)

    def renew(self, addresses: Iterable[LeasedAddress], valid_s: int) -> tuple[KernelError, ...]:
        """Puts addresses on devices, or extends their lifetime."""
        return leased_addresses.renew(self._netlink, addresses, valid_s)

    def remove(self, addresses: Iterable[LeasedAddress]) -> tuple[KernelError, ...]:
        """Takes addresses from devices."""
        return leased_addresses.remove(self._netlink, addresses)

    def announce(self, addresses: Iterable[LeasedAddress]) -> int:
        """Tells the machines of the links where the addresses are; returns the number of announcements."""
        by_link: dict[str, list[str]] = {}
        for leased in addresses:
            by_link.setdefault(leased.link, []).append(leased.address)
        count = 0
        for link, texts in by_link.items():
            try:
                neighbour_announcement.announce(link, texts, self._netns)
                count += len(texts)
            except KernelError as failure:
                self._log.warning("cannot announce addresses", problem=failure)
        return count

"""The device ``lo`` of a network namespace."""

from podwire.kernel import link_codec, network
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import IFF_UP, RTM_SETLINK

_INDEX = 1
"""The kernel creates ``lo`` first in each namespace."""


class Loopback:
    """The devices of the namespaces of pods."""

    def set_up(self, netns: NetnsPath, *, up: bool) -> None:
        """Brings the device up or down.

        Raises: KernelNotFound when there is no such namespace; KernelError.
        """
        with Netlink(netns) as netlink:
            change = link_codec.header(_INDEX, IFF_UP if up else 0, IFF_UP)
            netlink.request(Message(RTM_SETLINK, 0, change, "set up" if up else "set down", "link lo"))

    def addresses(self, netns: NetnsPath) -> tuple[str, ...]:
        """The addresses of the device with their prefixes; none while it is down.

        Raises: KernelNotFound when there is no such namespace; KernelError.
        """
        with Netlink(netns) as netlink:
            state = network.read_paths(netlink)
        link = state.link("lo")
        if link is None or not link.up:
            return ()
        return tuple(address.cidr for address in state.addresses if address.link == "lo")

"""Finds the node's device of a pod that another CNI plugin wired, and the bridge that the device is a port of."""

from collections.abc import Iterable, Mapping

from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.policy.foreign.kernel import KernelLinks
from podwire.policy.foreign.locate import locate


def bridges_of_devices(netns: NetnsPath = None) -> Mapping[str, str]:
    """The bridge of each device that may belong to a pod; empty for a device that is no port of a bridge.

    Raises: KernelError.
    """
    with Netlink(netns) as netlink:
        return {wire.name: wire.bridge for wire in bridges.read_wires(netlink)}


def find_device(named: Iterable[str], addresses: tuple[str, ...]) -> str:
    """The device that is a pod's alone: one of those named, or the one that has the addresses; empty: none.

    Raises: KernelError.
    """
    present = bridges_of_devices()
    for name in named:
        if name in present:
            return name
    link = locate({"": addresses}, *KernelLinks().read(), {}).get("")
    return (link.port or link.device) if link is not None else ""

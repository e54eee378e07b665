"""Hardware address, MTU and reception modes of one device of a pod, read and changed by its name."""

import msgspec

from podwire.kernel import link_codec, sysctl
from podwire.kernel.attributes import attribute, u32
from podwire.kernel.link_codec import IFINFOMSG
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import IFLA_ADDRESS, IFLA_MTU, RTM_GETLINK, RTM_SETLINK
from podwire.state.address import pack_mac

IFF_PROMISC, IFF_ALLMULTI = 0x100, 0x200
"""linux/if.h."""


class DeviceSettings(msgspec.Struct, frozen=True, gc=False):
    """Settings of a device; the default of a field means that it is not changed."""

    mac: str = ""
    mtu: int = 0
    promisc: bool | None = None
    allmulti: bool | None = None


class DeviceTuning:
    """The devices and sysctls of the namespaces of pods."""

    def read(self, netns: NetnsPath, name: str) -> DeviceSettings:
        """The settings of a device.

        Raises: KernelNotFound when there is no such namespace or device; KernelError.
        """
        with Netlink(netns) as netlink:
            _, payload = netlink.get(Message(RTM_GETLINK, 0, link_codec.encode_get(name), "read", f"link {name}"))
        link, flags = link_codec.decode(payload).link, IFINFOMSG.unpack_from(payload)[3]
        return DeviceSettings(link.mac, link.mtu, bool(flags & IFF_PROMISC), bool(flags & IFF_ALLMULTI))

    def write(self, netns: NetnsPath, name: str, settings: DeviceSettings) -> None:
        """Changes the settings of a device that are not defaults.

        Raises: KernelNotFound when there is no such namespace or device; KernelError.
        """
        with Netlink(netns) as netlink:
            _, payload = netlink.get(Message(RTM_GETLINK, 0, link_codec.encode_get(name), "read", f"link {name}"))
            index = link_codec.decode(payload).link.index
            subject = f"link {name}"
            if settings.mac:
                address = link_codec.header(index) + attribute(IFLA_ADDRESS, pack_mac(settings.mac))
                netlink.request(Message(RTM_SETLINK, 0, address, "set the hardware address of", subject))
            if settings.mtu:
                mtu = link_codec.header(index) + u32(IFLA_MTU, settings.mtu)
                netlink.request(Message(RTM_SETLINK, 0, mtu, "set the MTU of", subject))
            for mode, flag in ((settings.promisc, IFF_PROMISC), (settings.allmulti, IFF_ALLMULTI)):
                if mode is not None:
                    change = link_codec.header(index, flag if mode else 0, flag)
                    netlink.request(Message(RTM_SETLINK, 0, change, "set a reception mode of", subject))

    def read_sysctl(self, netns: NetnsPath, path: str) -> str:
        """The value of a sysctl by its path.

        Raises: KernelError.
        """
        return sysctl.read(path, netns)

    def write_sysctl(self, netns: NetnsPath, path: str, value: str) -> None:
        """Sets a sysctl by its path.

        Raises: KernelError.
        """
        sysctl.write(path, value, netns)

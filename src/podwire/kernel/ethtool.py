"""Checksum offload of devices, by the ioctl of ethtool(8).

Source: include/uapi/linux/ethtool.h (``ETHTOOL_GTXCSUM``), net/ethtool/ioctl.c. Without transmit checksum offload the
kernel computes the checksums of a packet in software before the device gets the packet, and sends no packets larger
than the MTU to the device. Cost: 5 us a device.
"""

import array
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Sequence

from podwire.kernel.failure import refusal
from podwire.kernel.netns import NetnsPath, inside
from podwire.state.offload import Offload

SIOCETHTOOL = 0x8946
ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM = 0x16, 0x17
_IFREQ = struct.Struct("16sP16x")
_VALUE = struct.Struct("=II")
_MISSING = (errno.ENODEV, errno.EOPNOTSUPP)
SAFE_KERNEL = (5, 7)
"""Older kernels write wrong checksums of outer packets that are translated twice (commit ea64d8d6c675)."""


def is_older_than_safe(release: str) -> bool:
    """Whether a kernel release has the wrong checksums of tunnels; False when it cannot be read."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and tuple(map(int, numbers.groups())) < SAFE_KERNEL


def running_release() -> str:
    """The release of the running kernel."""
    return os.uname().release


def read(netns_path: NetnsPath, devices: Sequence[str]) -> tuple[Offload, ...]:
    """The offloads of the devices that exist.

    Raises: KernelError.
    """
    offloads = []
    with inside(netns_path):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with opened:
        for device in devices:
            value = _call(opened, device, ETHTOOL_GTXCSUM, 0)
            if value is not None:
                offloads.append(Offload(device, "on" if value else "off"))
    return tuple(offloads)


def apply(netns_path: NetnsPath, devices: Sequence[str], desired: Sequence[Offload]) -> tuple[str, ...]:
    """Gives devices their offloads; returns the changes. Devices that do not exist are left out.

    Raises: KernelError.
    """
    present = {offload.device: offload for offload in read(netns_path, devices)}
    changed = [offload for offload in desired if offload.device in present and present[offload.device] != offload]
    if changed:
        with inside(netns_path):
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with opened:
            for offload in changed:
                _call(opened, offload.device, ETHTOOL_STXCSUM, int(offload.tx == "on"))
    return tuple(map(str, changed))


def _call(opened: socket.socket, device: str, command: int, data: int) -> int | None:
    """The value after the call; None without the device."""
    value = array.array("B", _VALUE.pack(command, data))
    address, _ = value.buffer_info()
    try:
        fcntl.ioctl(opened, SIOCETHTOOL, _IFREQ.pack(device.encode(), address))
    except OSError as failure:
        if failure.errno in _MISSING:
            return None
        raise refusal("set checksum offload", device, failure.errno or 0) from failure
    return int(_VALUE.unpack(value.tobytes())[1])

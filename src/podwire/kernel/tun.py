"""TUN and TAP devices, which are created by ioctl on /dev/net/tun instead of rtnetlink.

Source: include/uapi/linux/if_tun.h, drivers/net/tun.c. A device ends with its descriptor, unless it is persistent.
"""

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from podwire.kernel.failure import refusal
from podwire.kernel.netns import inside
from podwire.kernel.uapi import IFF_TAP

TUNSETIFF = 0x400454CA
TUNSETPERSIST = 0x400454CB
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUNGETIFF = 0x800454D2
TUNSETOFFLOAD = 0x400454D0
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
TUN_F_USO4, TUN_F_USO6 = 0x20, 0x40
_OFFLOADS = (
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6,
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
)
"""The offloads that are requested, in turn until the kernel accepts: segments of UDP are known since Linux 6.2."""
_IFREQ = struct.Struct("16sH22x")


def open_tun(name: str, netns: Path | str | int | None = None, *, mode: str = "tun", vnet_header: bool = False) -> int:
    """A descriptor of the device, which is created when missing; the caller closes the descriptor.

    With ``vnet_header`` each packet follows a ``virtio_net_hdr`` (10 bytes, linux/virtio_net.h), and the kernel leaves
    the checksum and the segments of TCP, and of UDP where it can, to the reader: a read returns up to 64 KiB.

    Raises: Unsupported without tun in the kernel; KernelError, EBUSY when another process has the device open.
    """
    flags = (IFF_TAP if mode == "tap" else IFF_TUN) | IFF_NO_PI | (IFF_VNET_HDR if vnet_header else 0)
    descriptor = -1
    try:
        with inside(netns):
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.ioctl(descriptor, TUNSETIFF, _IFREQ.pack(name.encode(), flags))
    except OSError as failure:
        if descriptor >= 0:
            os.close(descriptor)
        raise refusal("open tun device", name, failure.errno or 0) from failure
    if vnet_header:
        _request_offloads(descriptor)
    return descriptor


def _request_offloads(descriptor: int) -> None:
    for offloads in _OFFLOADS:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, TUNSETOFFLOAD, offloads)
            return


def is_attached(descriptor: int) -> bool:
    """Whether a descriptor is that of a device that exists."""
    try:
        fcntl.ioctl(descriptor, TUNGETIFF, bytes(_IFREQ.size))
    except OSError:
        return False
    return True


def create_persistent(name: str, netns: Path | str | int | None = None, *, mode: str = "tun") -> None:
    """Creates a device that stays without a process.

    Raises: as :func:`open_tun`.
    """
    descriptor = open_tun(name, netns, mode=mode)
    try:
        fcntl.ioctl(descriptor, TUNSETPERSIST, 1)
    except OSError as failure:
        raise refusal("make tun device persistent", name, failure.errno or 0) from failure
    finally:
        os.close(descriptor)

"""TUN and TAP devices, which are created by ioctl on /dev/net/tun instead of rtnetlink.

Source: include/uapi/linux/if_tun.h, drivers/net/tun.c. A device ends with its descriptor, unless it is persistent.
"""

import fcntl
import os
import struct
from pathlib import Path

from podwire.kernel.failure import refusal
from podwire.kernel.netns import inside

TUNSETIFF = 0x400454CA
TUNSETPERSIST = 0x400454CB
IFF_TUN, IFF_TAP = 0x0001, 0x0002
IFF_NO_PI = 0x1000
_IFREQ = struct.Struct("16sH22x")


def open_tun(name: str, netns: Path | str | int | None = None, *, mode: str = "tun") -> int:
    """A descriptor of the device, which is created when missing; the caller closes the descriptor.

    Raises: Unsupported without tun in the kernel; KernelError, EBUSY when another process has the device open.
    """
    flags = (IFF_TAP if mode == "tap" else IFF_TUN) | IFF_NO_PI
    descriptor = -1
    try:
        with inside(netns):
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.ioctl(descriptor, TUNSETIFF, _IFREQ.pack(name.encode(), flags))
    except OSError as failure:
        if descriptor >= 0:
            os.close(descriptor)
        raise refusal("open tun device", name, failure.errno or 0) from failure
    return descriptor


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

"""Generic netlink: a socket for the messages of one family, whose number the kernel assigns when it is loaded."""

import struct
from collections.abc import Sequence

from podwire.errors import KernelError, KernelNotFound, Unsupported
from podwire.kernel.attributes import number, parse, text
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import (
    CTRL_ATTR_FAMILY_ID,
    CTRL_ATTR_FAMILY_NAME,
    CTRL_CMD_GETFAMILY,
    GENL_ID_CTRL,
    NETLINK_GENERIC,
)

_GENLMSGHDR = struct.Struct("=BBxx")
"""Command and version."""


class GenericNetlink:
    """A socket for a family (None: in the namespace of the calling thread).

    Raises: Unsupported when the kernel has no such family.
    """

    def __init__(self, netns_path: NetnsPath, family: str) -> None:
        self._netlink = Netlink(netns_path, NETLINK_GENERIC)
        body = _GENLMSGHDR.pack(CTRL_CMD_GETFAMILY, 1) + text(CTRL_ATTR_FAMILY_NAME, family)
        try:
            _, payload = self._netlink.get(Message(GENL_ID_CTRL, 0, body, "find", f"generic netlink family {family}"))
        except KernelNotFound as failure:
            self._netlink.close()
            raise Unsupported(family, detail="the kernel has no such netlink family") from failure
        except KernelError:
            self._netlink.close()
            raise
        self._family = number(parse(payload, _GENLMSGHDR.size), CTRL_ATTR_FAMILY_ID)

    def __enter__(self) -> "GenericNetlink":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._netlink.close()

    def dump(self, body: bytes, operation: str, subject: str) -> list[bytes]:
        """The payloads of the answer to a dump request.

        Raises: KernelError.
        """
        return self._netlink.dump(Message(self._family, 0, body, operation, subject))

    def request(self, bodies: Sequence[bytes], operation: str, subject: str) -> None:
        """Sends messages one after the other, until the kernel refuses one.

        Raises: KernelError.
        """
        for body in bodies:
            self._netlink.request(Message(self._family, 0, body, operation, subject))

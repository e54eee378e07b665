"""IPVS in one network namespace, by generic netlink.

:func:`Ipvs.read` requests all virtual servers and then the real servers of each, one request per server, because the
kernel has no other: 5,000 with two real servers each in 0.44 s. A change is one message per object, many in one send:
the same in 0.24 s. Deleting an object that does not exist is not an error. The kernel loads the module of a scheduler
on its first use.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from podwire.errors import KernelError, KernelNotFound, Unsupported
from podwire.kernel import ipvs_codec as codec
from podwire.kernel.attributes import number, parse, text
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import (
    CTRL_ATTR_FAMILY_ID,
    CTRL_ATTR_FAMILY_NAME,
    CTRL_CMD_GETFAMILY,
    GENL_ID_CTRL,
    NETLINK_GENERIC,
)
from podwire.state.ipvs import Destination, Key, VirtualServer
from podwire.state.ipvs_changes import Step


class Timeouts(NamedTuple):
    """Seconds until the kernel deletes the entry of an idle connection."""

    tcp_s: int
    tcp_fin_s: int
    udp_s: int


class Ipvs:
    """A generic netlink socket for IPVS (None: in the namespace of the calling thread).

    Raises: Unsupported when the kernel has no IPVS.
    """

    def __init__(self, netns_path: Path | str | int | None = None) -> None:
        self._netlink = Netlink(netns_path, NETLINK_GENERIC)
        body = struct.pack("=BBxx", CTRL_CMD_GETFAMILY, 1) + text(CTRL_ATTR_FAMILY_NAME, codec.IPVS_GENL_NAME)
        try:
            _, payload = self._netlink.get(Message(GENL_ID_CTRL, 0, body, "find", "generic netlink family IPVS"))
        except KernelNotFound as failure:
            self._netlink.close()
            raise Unsupported("ip_vs", "2.6.28", "the kernel has no ip_vs") from failure
        except KernelError:
            self._netlink.close()
            raise
        self._family = number(parse(payload, codec.GENLMSGHDR_SIZE), CTRL_ATTR_FAMILY_ID)

    def __enter__(self) -> "Ipvs":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._netlink.close()

    def _message(self, body: bytes, operation: str, subject: object) -> Message:
        return Message(self._family, 0, body, operation, subject)

    def servers(self) -> tuple[VirtualServer, ...]:
        """All virtual servers by address, without their destinations.

        Raises: KernelError.
        """
        body = codec.encode_plain(codec.IPVS_CMD_GET_SERVICE)
        answers = self._netlink.dump(self._message(body, "list", "virtual servers"))
        decoded = (codec.decode_server(payload) for payload in answers)
        return tuple(server for server in decoded if server is not None)

    def destinations(self, key: Key) -> tuple[tuple[Destination, int], ...]:
        """The real servers of a virtual server with their numbers of connections, in the order of their text.

        Empty when the virtual server does not exist.

        Raises: KernelError.
        """
        message = self._message(codec.encode_key(codec.IPVS_CMD_GET_DEST, key), "list", key)
        try:
            answers = self._netlink.dump(message)
        except KernelNotFound:
            return ()
        decoded = (codec.decode_destination(payload, key) for payload in answers)
        return tuple(sorted(decoded, key=lambda entry: str(entry[0])))

    def read(self, keys: Iterable[Key] | None = None) -> tuple[VirtualServer, ...]:
        """Virtual servers with their destinations: those with the keys, or all.

        Raises: KernelError.
        """
        selected = None if keys is None else frozenset(keys)
        return tuple(
            replace(server, destinations=tuple(destination for destination, _ in self.destinations(server.key)))
            for server in self.servers()
            if selected is None or server.key in selected
        )

    def apply(self, steps: Sequence[Step]) -> None:
        """Performs the steps in their order, 500 of them in one send.

        Raises: KernelError of the first step that the kernel refused; the other steps are done.
        """
        messages = [self._message(_encode(step), step.verb, step.subject) for step in steps]
        for at, failure in sorted(self._netlink.batch(messages).items()):
            if steps[at].verb != "delete" or not isinstance(failure, KernelNotFound):
                raise failure

    def timeouts(self) -> Timeouts:
        """The namespace's timeouts.

        Raises: KernelError.
        """
        body = codec.encode_plain(codec.IPVS_CMD_GET_CONFIG)
        return Timeouts(*codec.decode_timeouts(self._netlink.get(self._message(body, "read", "timeouts of IPVS"))[1]))

    def set_timeouts(self, timeouts: Timeouts) -> None:
        """Sets the namespace's timeouts; 0 keeps the present value.

        Raises: KernelError.
        """
        self._netlink.request(self._message(codec.encode_timeouts(*timeouts), "set", f"IPVS {timeouts}"))


_COMMANDS = {
    "add": (codec.IPVS_CMD_NEW_SERVICE, codec.IPVS_CMD_NEW_DEST),
    "set": (codec.IPVS_CMD_SET_SERVICE, codec.IPVS_CMD_SET_DEST),
    "delete": (codec.IPVS_CMD_DEL_SERVICE, codec.IPVS_CMD_DEL_DEST),
}


def _encode(step: Step) -> bytes:
    for_server, for_destination = _COMMANDS[step.verb]
    if step.destination is not None:
        return codec.encode_destination(for_destination, step.server.key, step.destination)
    if step.verb == "delete":
        return codec.encode_key(for_server, step.server.key)
    return codec.encode_server(for_server, step.server)

"""Tunnels of the routing backend udp: read and changed by the socket of the process that carries the packets.

The socket is abstract, so it belongs to the network namespace of the process. A message is one request, and one answer
(:mod:`podwire.runtime.messages`); its first line has the verb: ``show`` (which first carries the packets that wait) and
``counters`` return text, ``set`` is followed by the text of the tunnel and ``change`` by the lines in which it differs
from the one that ``show`` returned, and ``take`` returns the descriptors of a process whose keeper has ended. The first
line of an answer is ``ok``, or ``refused`` with the reason after it.
"""

import errno
import socket
import struct
from collections.abc import Sequence

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import netns
from podwire.kernel.failure import refusal
from podwire.kernel.netns import NetnsPath
from podwire.runtime import messages
from podwire.state.udptunnel import UdpTunnel, difference, parse

_ANSWER_S = 5.0
"""Time after which a process that does not answer counts as broken."""
_CREDENTIALS = struct.Struct("3i")
DESCRIPTORS = 3


def control_name(device: str) -> str:
    """The name of the socket of a device's process."""
    return f"\0podwire-udp/{device}"


def read(netns_path: NetnsPath, devices: Sequence[str]) -> tuple[UdpTunnel, ...]:
    """The tunnels whose process runs.

    Raises: KernelError.
    """
    known_devices = []
    for device in devices:
        try:
            text = ask(netns_path, device, "show")
        except KernelNotFound:
            continue
        known_devices.append(_parse(device, text))
    return tuple(known_devices)


def _parse(device: str, text: str) -> UdpTunnel:
    try:
        (tunnel,) = parse(text.splitlines())
    except ValueError as failure:
        raise refusal("read", f"udp {device}", errno.EPROTO, str(failure)) from failure
    return tunnel


def apply(netns_path: NetnsPath, desired: UdpTunnel) -> tuple[str, ...]:
    """Gives a tunnel its peers; returns the lines that were added. Nothing is written when nothing differs.

    Raises: KernelNotFound while the process does not run; KernelError, also when the process refuses the text: it keeps
    the last one.
    """
    present, desired_text = ask(netns_path, desired.device, "show"), str(desired)
    if present == desired_text:
        return ()
    changed = difference(present, desired_text)
    try:
        if changed is None:
            ask(netns_path, desired.device, f"set\n{desired_text}")
        else:
            ask(netns_path, desired.device, "\n".join(("change", *changed)))
    except KernelError as refused:
        if changed is None or refused.errno != errno.EINVAL:
            raise
        ask(netns_path, desired.device, f"set\n{desired_text}")  # The process is of a version without ``change``.
    old = set(present.splitlines())
    return tuple(line for line in desired_text.splitlines() if line not in old)


def differs(netns_path: NetnsPath, desired: Sequence[UdpTunnel]) -> bool:
    """Whether the process of a tunnel does not run, or holds something else."""
    try:
        return any(ask(netns_path, tunnel.device, "show") != str(tunnel) for tunnel in desired)
    except KernelError:
        return True


def counters(netns_path: NetnsPath, device: str) -> str:
    """What the process has carried and dropped, a counter a line.

    Raises: KernelNotFound while the process does not run; KernelError.
    """
    return ask(netns_path, device, "counters")


def ask(netns_path: NetnsPath, device: str, request: str) -> str:
    """The text that follows the first line of the answer to a request.

    Raises: KernelNotFound while the process does not run; KernelError.
    """
    text, _ = exchange(netns_path, device, request)
    return text


def exchange(netns_path: NetnsPath, device: str, request: str, max_fds: int = 0) -> tuple[str, list[int]]:
    """As :func:`ask`, with descriptors in the answer, which the caller closes.

    Raises: as :func:`ask`.
    """
    subject = f"udp {device}"
    try:
        with netns.inside(netns_path):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(control_name(device))
            if not is_root(connection):
                raise refusal("reach", subject, errno.EPERM, "the process that listens on its socket is not root")
            messages.send(connection, request.encode())
            answer, fds = messages.receive(connection, max_fds)
    except (OSError, EOFError) as failure:
        number = failure.errno if isinstance(failure, OSError) else None
        number = errno.ENODEV if isinstance(failure, ConnectionRefusedError) else number or errno.ETIMEDOUT
        raise refusal("reach", subject, number, "its process does not answer") from failure
    head, _, text = answer.decode().partition("\n")
    if not head.startswith("ok"):
        raise refusal("configure", subject, errno.EINVAL, text)
    return text, fds


def is_root(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == 0)

"""SCTP through rules: connections when the kernel has SCTP, else the first two packets of one on raw sockets.

Rules and connection tracking see INIT and INIT ACK either way. By hand, the endpoint says who it is and who asked in
the State Cookie of its INIT ACK (RFC 4960, 3.3.2 and 3.3.3), and a refusal comes as an ICMP message or an ABORT.

A socket has one address of its own: with more, SCTP would tell them all to the peer, and translation does not change
what is said inside of packets. Kubernetes does not support several addresses for that reason.
"""

import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterator
from functools import cache
from ipaddress import ip_address

from tests.kernel.checksums import crc32c

PORTS = (8080, 8081)
_INIT, _INIT_ACK, _ABORT = 1, 2, 6
_COOKIE = 7
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_SCTP_RTOINFO = 0  # linux/sctp.h: association, first, longest and shortest time in ms until a packet is sent again

_SHUFFLED = list(range(20000, 60000))
random.shuffle(_SHUFFLED)
_OWN_PORTS = itertools.cycle(_SHUFFLED)
"""No port comes again before all others: connection tracking remembers where it led."""


@cache
def in_kernel() -> bool:
    """Whether this kernel has SCTP."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP):
        return True
    return False


def listeners(addresses: tuple[str, ...]) -> Iterator[socket.socket]:
    """Sockets that answer on ``PORTS`` of the addresses, in the namespace of this thread."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if not in_kernel():
            created = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_SCTP)
            created.bind((address, 0))
            yield created
            continue
        for port in PORTS:
            created = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
            created.bind((address, port))
            created.listen(64)
            yield created


def answer(sock: socket.socket, name: str) -> None:
    """Answers at a socket of :func:`listeners` with the name of the endpoint and the address of the client."""
    if sock.type == socket.SOCK_STREAM:
        connection, client = sock.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"{name} {client[0]}".encode())
        return
    data, client = sock.recvfrom(2048)
    asked = _parse(_payload(sock, data))
    if asked is None or asked[1] not in PORTS or asked[2] != _INIT:
        return
    source_port, port, _, chunk = asked
    (tag,) = struct.unpack_from("!I", chunk)
    cookie = f"{name} {client[0]}".encode()
    parameter = struct.pack("!HH", _COOKIE, 4 + len(cookie)) + cookie + bytes(-len(cookie) % 4)
    sock.sendto(_packet(port, source_port, tag, _INIT_ACK, _opening() + parameter), client)


def connect(address: str, port: int, own: str, patience_s: float) -> tuple[str, str]:
    """Connects from this thread's namespace: (endpoint, source it saw), ("refused", "") or ("dropped", "").

    ``own`` is the address to use; empty: the usual one.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    shape = (socket.SOCK_STREAM if in_kernel() else socket.SOCK_RAW, socket.IPPROTO_SCTP)
    with socket.socket(family, *shape) as sock:
        sock.settimeout(patience_s)
        if own:
            sock.bind((own, 0))
        level, option = (
            (socket.IPPROTO_IPV6, _IPV6_RECVERR) if family == socket.AF_INET6 else (socket.IPPROTO_IP, _IP_RECVERR)
        )
        sock.setsockopt(level, option, 1)
        if in_kernel():
            # A refusal of the first packet comes while connect holds the socket and is lost; another comes soon.
            sock.setsockopt(socket.IPPROTO_SCTP, _SCTP_RTOINFO, struct.pack("=iIII", 0, 50, 200, 50))
        try:
            sock.connect((address, port if in_kernel() else 0))
            fields = (sock.recv(200) if in_kernel() else _shake_hands(sock, port)).decode().split()
        except ConnectionRefusedError:
            return "refused", ""
        except (TimeoutError, OSError):
            return "dropped", ""
    return fields[0], str(ip_address(fields[1]))


def _shake_hands(sock: socket.socket, port: int) -> bytes:
    own_port = next(_OWN_PORTS)
    with contextlib.suppress(PermissionError):  # a rule of the own machine took it; then comes why
        sock.send(_packet(own_port, port, 0, _INIT, _opening()))
    while True:
        result = _parse(_payload(sock, sock.recv(2048)))
        if result is None or result[:2] != (port, own_port):
            continue
        _, _, kind, chunk = result
        if kind == _ABORT:
            raise ConnectionRefusedError
        if kind == _INIT_ACK:
            parameter, size = struct.unpack_from("!HH", chunk, 16)
            assert parameter == _COOKIE
            return chunk[20 : 16 + size]


def _payload(sock: socket.socket, data: bytes) -> bytes:
    """The payload without the IP header that raw sockets of IPv4 include."""
    return data if sock.family == socket.AF_INET6 else data[(data[0] & 15) * 4 :]


def _parse(packet: bytes) -> tuple[int, int, int, bytes] | None:
    """Source port, destination port, type and value of the first chunk; None when this is no SCTP packet."""
    if len(packet) < 16:
        return None
    source_port, port = struct.unpack_from("!HH", packet)
    kind, _, size = struct.unpack_from("!BBH", packet, 12)
    return source_port, port, kind, packet[16 : 12 + size]


def _opening() -> bytes:
    """The value of an INIT chunk: tag, window, streams and first sequence number."""
    return struct.pack("!IIHHI", random.randint(1, 2**32 - 1), 65535, 1, 1, random.getrandbits(32))


def _packet(source_port: int, port: int, tag: int, kind: int, value: bytes) -> bytes:
    head = struct.pack("!HHI", source_port, port, tag)
    chunk = struct.pack("!BBH", kind, 0, 4 + len(value)) + value
    return head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk

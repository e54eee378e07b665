"""Packets that test the path to another node: an ICMP echo of a size, and a UDP datagram to a closed port.

No program answers: the kernel of the other node does. An echo of the full size that is answered has passed the path
unfragmented (IP_PMTUDISC_PROBE sets DF and ignores what was learned of the path). A datagram to a closed port is
answered with "port unreachable", but only when its checksum is right (net/ipv4/udp.c, ``__udp4_lib_rcv``): a datagram
whose checksum is left to the device below a tunnel tests the device, and one from a raw socket has its checksum from
here. Cost: two sockets for the time of a test, about 0.2 ms of CPU.
"""

import asyncio
import errno
import secrets
import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address

from podwire.kernel.failure import refusal
from podwire.kernel.netns import NetnsPath, inside

PORT_OFFLOADED, PORT_SOFTWARE = 33434, 33435
"""Closed ports; traceroute begins with the first, so that hosts keep it free."""
ANSWER_S = 0.5
"""More than a round trip between nodes takes."""
_SOL_RAW, _ICMP_FILTER, _ICMP6_FILTER = 255, 1, 1  # linux/socket.h, linux/icmp.h, linux/icmpv6.h
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3  # linux/in.h, linux/in6.h
_ECHO, _ECHO_REPLY, _UNREACHABLE, _PORT = 8, 0, 3, 3
_ECHO6, _ECHO_REPLY6, _UNREACHABLE6, _PORT6 = 128, 129, 1, 4
_ICMP = struct.Struct("!BBHHH")
_UDP = struct.Struct("!HHHH")
_HEADER = {4: 20, 6: 40}
_PAYLOAD = b"podwire path test"
_RECEIVE = 65_536


class PathProber:
    """Tests paths from a network namespace (None: that of this thread); an answer may take ``answer_s``, seconds."""

    def __init__(self, netns_path: NetnsPath = None, answer_s: float = ANSWER_S) -> None:
        self._netns_path = netns_path
        self._answer_s = answer_s

    async def echo(self, source: str, address: str, size: int) -> bool:
        """Whether an echo of ``size`` bytes, IP header included, is answered in time.

        Raises: KernelError without the privilege for raw sockets.
        """
        version = ip_address(address).version
        token = secrets.randbits(16), secrets.randbits(16)
        with self._icmp_socket(version, source) as icmp:
            packet = _echo(version, token, size - _HEADER[version] - _ICMP.size)
            if not _send(icmp, packet, address, 0):
                return False
            return await _answered(icmp, self._answer_s, lambda data: _is_reply(version, data, token))

    async def datagram(self, source: str, address: str, *, offload: bool) -> bool:
        """Whether a datagram to a closed port is answered; with ``offload`` the checksum is left to the device.

        Raises: KernelError without the privilege for raw sockets.
        """
        version = ip_address(address).version
        port = PORT_OFFLOADED if offload else PORT_SOFTWARE
        with self._icmp_socket(version, source) as icmp, self._socket(version, socket.SOCK_DGRAM, 0, source) as plain:
            own = plain.getsockname()[1]
            if offload:
                sent = _send(plain, _PAYLOAD, address, port)
            else:
                with self._socket(version, socket.SOCK_RAW, socket.IPPROTO_UDP, source) as raw:
                    sent = _send(raw, _datagram(source, address, own, port), address, 0)
            return sent and await _answered(
                icmp, self._answer_s, lambda data: _is_unreachable(version, data, own, port)
            )

    def _icmp_socket(self, version: int, source: str) -> socket.socket:
        opened = self._socket(
            version, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if version == 6 else socket.IPPROTO_ICMP, source
        )
        if version == 6:
            passed = (_ECHO_REPLY6, _UNREACHABLE6)
            bits = [0xFFFFFFFF] * 8
            for kind in passed:
                bits[kind >> 5] &= ~(1 << (kind & 31))
            opened.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("=8I", *bits))
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            blocked = 0xFFFFFFFF & ~(1 << _ECHO_REPLY | 1 << _UNREACHABLE)
            opened.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", blocked))
            opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        return opened

    def _socket(self, version: int, kind: int, protocol: int, source: str) -> socket.socket:
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        try:
            with inside(self._netns_path):
                opened = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        except OSError as failure:
            raise refusal("open", "raw socket", failure.errno or 0) from failure
        try:
            opened.bind((source, 0))
        except OSError as failure:
            opened.close()
            raise refusal("bind", source, failure.errno or 0) from failure
        return opened


def _send(opened: socket.socket, packet: bytes, address: str, port: int) -> bool:
    """Whether the packet left; one that is too large for the device, or has no route, did not."""
    try:
        opened.sendto(packet, (address, port))
    except OSError as failure:
        if failure.errno in (errno.EINVAL, errno.EBADF):
            raise refusal("send to", address, failure.errno) from failure
        return False
    return True


async def _answered(icmp: socket.socket, answer_s: float, is_answer: Callable[[bytes], bool]) -> bool:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(answer_s):
            while True:
                if is_answer(await loop.sock_recv(icmp, _RECEIVE)):
                    return True
    except (TimeoutError, OSError):
        return False


def _echo(version: int, token: tuple[int, int], payload: int) -> bytes:
    body = _PAYLOAD.ljust(max(0, payload), b"\0")[: max(0, payload)]
    if version == 6:
        return _ICMP.pack(_ECHO6, 0, 0, *token) + body  # The kernel computes the checksum of ICMPv6.
    head = _ICMP.pack(_ECHO, 0, 0, *token)
    return _ICMP.pack(_ECHO, 0, _checksum(head + body), *token) + body


def _is_reply(version: int, data: bytes, token: tuple[int, int]) -> bool:
    icmp = _icmp_of(version, data)
    if len(icmp) < _ICMP.size:
        return False
    kind, _, _, *received = _ICMP.unpack_from(icmp)
    return kind == (_ECHO_REPLY6 if version == 6 else _ECHO_REPLY) and tuple(received) == token


def _is_unreachable(version: int, data: bytes, source: int, destination: int) -> bool:
    icmp = _icmp_of(version, data)
    if icmp[:2] != (bytes((_UNREACHABLE6, _PORT6)) if version == 6 else bytes((_UNREACHABLE, _PORT))):
        return False
    inner = icmp[_ICMP.size :]
    offset = 40 if version == 6 else (inner[0] & 15) * 4 if inner else 0
    ports = inner[offset : offset + 4]
    return len(ports) == 4 and struct.unpack("!HH", ports) == (source, destination)


def _icmp_of(version: int, data: bytes) -> bytes:
    """The ICMP message: a raw socket of IPv4 receives the IP header too."""
    return data if version == 6 else data[(data[0] & 15) * 4 :] if data else b""


def _datagram(source: str, address: str, source_port: int, port: int) -> bytes:
    """A datagram with its checksum (RFC 768, RFC 8200 section 8.1)."""
    length = _UDP.size + len(_PAYLOAD)
    ends = ip_address(source).packed + ip_address(address).packed
    pseudo = ends + struct.pack(
        "!HH" if len(ends) == 8 else "!IxxxB", *((17, length) if len(ends) == 8 else (length, 17))
    )
    body = _UDP.pack(source_port, port, length, 0) + _PAYLOAD
    return _UDP.pack(source_port, port, length, _checksum(pseudo + body) or 0xFFFF) + _PAYLOAD


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded: bytes = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

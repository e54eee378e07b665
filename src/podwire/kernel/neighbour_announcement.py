"""Tells the machines of a link that an address has moved here.

Machines remember the hardware address of a neighbour for minutes. An announcement changes it at once: for IPv4 a
gratuitous ARP request (RFC 5227 section 3) and, for machines that pass over requests, a reply; for IPv6 an unsolicited
neighbour advertisement with the flag override to all nodes (RFC 4861 section 7.2.6). They are sent without an answer,
so callers repeat them.
"""

import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.kernel.netns import NetnsPath

_ETH_P_ARP, _ETH_P_IPV6 = 0x0806, 0x86DD  # linux/if_ether.h
_REQUEST, _REPLY = 1, 2  # RFC 826
_ALL_NODES = IPv6Address("ff02::1")
_ADVERTISEMENT, _OVERRIDE = 136, 0x20000000


def announce(link: str, addresses: Iterable[str], netns_path: NetnsPath = None) -> None:
    """Sends one announcement of each address on a device.

    Raises: KernelError.
    """
    try:
        with netns.inside(netns_path):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with sender:
            sender.bind((link, 0))
            mac = sender.getsockname()[4]
            for text in addresses:
                address = ip_address(text)
                sender.send(announcement(mac, address))
                if isinstance(address, IPv4Address):
                    sender.send(announcement_by_reply(mac, address))
    except OSError as failure:
        raise KernelError("announce addresses on", link, failure.errno or 0) from failure


def announcement(mac: bytes, address: IPv4Address | IPv6Address) -> bytes:
    """The Ethernet frame that says that an address is at ``mac``."""
    if isinstance(address, IPv4Address):
        return _arp(mac, _REQUEST) + mac + address.packed + bytes(6) + address.packed
    option = struct.pack("!BB", 2, 1) + mac
    body = struct.pack("!BBHI", _ADVERTISEMENT, 0, 0, _OVERRIDE) + address.packed + option
    pseudo = address.packed + _ALL_NODES.packed + struct.pack("!II", len(body), socket.IPPROTO_ICMPV6)
    checked = body[:2] + struct.pack("!H", _checksum(pseudo + body)) + body[4:]
    packet = struct.pack("!IHBB", 6 << 28, len(body), socket.IPPROTO_ICMPV6, 255)
    head = bytes.fromhex("333300000001") + mac + struct.pack("!H", _ETH_P_IPV6)
    return head + packet + address.packed + _ALL_NODES.packed + checked


def announcement_by_reply(mac: bytes, address: IPv4Address) -> bytes:
    """The same as a reply of ARP to all machines, which nobody asked for."""
    return _arp(mac, _REPLY) + mac + address.packed + b"\xff" * 6 + address.packed


def _arp(mac: bytes, operation: int) -> bytes:
    head = b"\xff" * 6 + mac + struct.pack("!H", _ETH_P_ARP)
    return head + struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)


def _checksum(octets: bytes) -> int:
    """The checksum of RFC 1071 of an even number of octets."""
    total: int = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

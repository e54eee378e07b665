"""Multicast forwarding of a namespace by hand: the entries that a multicast routing daemon would write.

IPv4 alone: for IPv6 the kernel takes devices with numbers up to 65535 (``mif6c_pifi``), and those of pods are larger.
"""

import socket
import struct
from ipaddress import ip_address
from pathlib import Path

from podwire.kernel import netns

_INIT, _ADD_VIF, _ADD_MFC = 200, 202, 204  # linux/mroute.h
_USE_IFINDEX = 8


def forward(place: Path, out: str, paths: list[tuple[str, str, str]]) -> socket.socket:
    """Forwards packets to the device ``out``: (source, group, incoming device) each, until the socket is closed."""
    with netns.inside(place):
        router = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
        devices = [out, *dict.fromkeys(device for _, _, device in paths)]
        indexes = [socket.if_nametoindex(device) for device in devices]
    router.setsockopt(socket.IPPROTO_IP, _INIT, 1)
    for number, index in enumerate(indexes):
        vif = struct.pack("=HBBIiI", number, _USE_IFINDEX, 1, 0, index, 0)
        router.setsockopt(socket.IPPROTO_IP, _ADD_VIF, vif)
    for source, group, device in paths:
        ends = (ip_address(source).packed, ip_address(group).packed)
        thresholds = bytes((1,)) + bytes(31)
        entry = struct.pack("=4s4sH32sxxIIIi", *ends, devices.index(device), thresholds, 0, 0, 0, 0)
        router.setsockopt(socket.IPPROTO_IP, _ADD_MFC, entry)
    return router

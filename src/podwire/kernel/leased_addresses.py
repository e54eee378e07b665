"""Addresses that the kernel removes by itself when they are not renewed.

An address of a load balancer is on a device of the one node that answers for it. It has a lifetime of seconds, which
the agent renews. While the agent is restarted or hangs, the kernel goes on answering ARP requests and neighbour
solicitations; when the agent does not come back, the address expires, so that another node may have it. Nothing has to
be cleaned up after an agent, not even on a node that nobody can reach.

Expiry: the kernel removes an address at the end of its lifetime, at most a second later (``check_lifetime`` of
``net/ipv4/devinet.c``, ``addrconf_verify_rtnl`` of ``net/ipv6/addrconf.c``: two checks are at least a second apart).
The addresses have the protocol :data:`PROTOCOL` (Linux 5.18; older kernels store none). IPv4 addresses have the scope
``link`` and IPv6 addresses are deprecated, so no connection of the node itself begins at them.

Cost: one message for each address and renewal, all in one batch: 5 us each.
"""

import struct
from collections.abc import Collection, Iterable, Mapping

import msgspec

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel.attributes import attribute, number, parse, u8, u32
from podwire.kernel.failure import refusal
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.network import read_links
from podwire.kernel.route_codec import IFADDRMSG, encode_address_dump
from podwire.kernel.uapi import (
    AF_INET,
    AF_INET6,
    IFA_ADDRESS,
    IFA_CACHEINFO,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    IFA_FLAGS,
    IFA_LOCAL,
    IFA_PROTO,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    RT_SCOPE_LINK,
    RT_SCOPE_UNIVERSE,
    RTM_DELADDR,
    RTM_GETADDR,
    RTM_NEWADDR,
)
from podwire.state.address import is_v6, pack_ip, unpack_ip

PROTOCOL = 115
"""The owner mark of addresses of load balancers."""
_ENODEV = 19
_CACHEINFO = struct.Struct("=IIII")  # struct ifa_cacheinfo of linux/if_addr.h


class LeasedAddress(msgspec.Struct, frozen=True, gc=False, order=True):
    """An address on a device."""

    link: str
    address: str


def renew(netlink: Netlink, addresses: Iterable[LeasedAddress], valid_s: int) -> tuple[KernelError, ...]:
    """Puts addresses on their devices for so many seconds, or gives those that are there so many seconds more.

    The failures are returned; the other addresses are there.

    Raises: KernelError when the devices cannot be read.
    """
    return _send(netlink, RTM_NEWADDR, addresses, valid_s)


def remove(netlink: Netlink, addresses: Iterable[LeasedAddress]) -> tuple[KernelError, ...]:
    """Takes addresses from their devices; addresses that are not there are no failure.

    Raises: KernelError when the devices cannot be read.
    """
    failures = _send(netlink, RTM_DELADDR, addresses, 0)
    return tuple(failure for failure in failures if not isinstance(failure, KernelNotFound))


def read(netlink: Netlink) -> frozenset[LeasedAddress]:
    """The addresses with the mark, on all devices.

    Raises: KernelError.
    """
    names = {link.index: link.name for link in read_links(netlink)}
    leased = set()
    for payload in netlink.dump(Message(RTM_GETADDR, 0, encode_address_dump(), "list", "addresses")):
        _, _, _, _, index = IFADDRMSG.unpack_from(payload)
        values = parse(payload, IFADDRMSG.size)
        packed = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
        if packed is not None and index in names and number(values, IFA_PROTO) == PROTOCOL:
            leased.add(LeasedAddress(names[index], unpack_ip(packed)))
    return frozenset(leased)


def device_with(netlink: Netlink, addresses: Collection[str]) -> str:
    """The device with one of these addresses, the earlier ones first; empty when no device has any.

    Raises: KernelError.
    """
    names = {link.index: link.name for link in read_links(netlink)}
    devices: dict[str, str] = {}
    for payload in netlink.dump(Message(RTM_GETADDR, 0, encode_address_dump(), "list", "addresses")):
        values = parse(payload, IFADDRMSG.size)
        packed = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
        index = IFADDRMSG.unpack_from(payload)[4]
        if packed is not None and index in names:
            devices[unpack_ip(packed)] = names[index]
    return next((devices[address] for address in addresses if address in devices), "")


def _send(netlink: Netlink, kind: int, addresses: Iterable[LeasedAddress], valid_s: int) -> tuple[KernelError, ...]:
    indexes = {link.name: link.index for link in read_links(netlink)}
    messages, failures = [], []
    for leased in addresses:
        subject = f"address {leased.address} dev {leased.link}"
        if leased.link not in indexes:
            failures.append(refusal("add", subject, _ENODEV))
            continue
        flags = NLM_F_CREATE | NLM_F_REPLACE if kind == RTM_NEWADDR else 0
        verb = "add" if kind == RTM_NEWADDR else "delete"
        messages.append(Message(kind, flags, encode(leased, indexes, valid_s), verb, subject))
    return (*failures, *netlink.batch(messages).values())


def encode(leased: LeasedAddress, indexes: Mapping[str, int], valid_s: int) -> bytes:
    """The body of RTM_NEWADDR with a lifetime, or of RTM_DELADDR with 0."""
    packed, six = pack_ip(leased.address), is_v6(leased.address)
    flags = IFA_F_NOPREFIXROUTE | (IFA_F_NODAD if six else 0)
    scope = RT_SCOPE_UNIVERSE if six else RT_SCOPE_LINK
    head = IFADDRMSG.pack(AF_INET6 if six else AF_INET, len(packed) * 8, flags & 0xFF, scope, indexes[leased.link])
    lifetimes = _CACHEINFO.pack(0, valid_s, 0, 0)
    body = head + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed) + u32(IFA_FLAGS, flags)
    if valid_s:
        body += attribute(IFA_CACHEINFO, lifetimes)
    return body + u8(IFA_PROTO, PROTOCOL)

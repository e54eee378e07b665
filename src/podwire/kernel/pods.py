"""Wires pods: a veth pair across two namespaces in two sends, and takes them away without waiting.

Two datagrams and one ``setns``: the first makes the pair with the pod's end already in its namespace, sets the
host end's parameters, neighbours and routes; the second does the rest inside. 0.5-0.8 ms a pod where ip(8)
needs 7 ms (three processes) and pyroute2 26-97 ms.

Traps: the peer must not be created up (ENOTCONN); addr_gen_mode is ignored at creation and must be set before
the device goes up, hence the extra message; device numbers are asked for on both ends, from 2**16 on, because
2 to 9 may be taken by tunl0 and its like in a fresh namespace; hardware addresses are given at creation, since
changing one later flushes the neighbours.

Taking away: RTM_DELLINK waits for RCU grace periods (16-28 ms each, with the lock of all of rtnetlink held), so
:func:`unwire` only removes routes and neighbours and moves the device to a group (0.2 ms), and :func:`sweep`
deletes that group at leisure, off the event loop: 50 devices in 19-43 ms.
"""

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import link_codec
from podwire.kernel.attributes import attribute, nested, text, u32
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import open_netns
from podwire.kernel.network import GRAVE, encode, read_raw_link
from podwire.kernel.uapi import (
    IF_OPER_UP,
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_INFO_DATA,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IFLA_MTU,
    IPV4_DEVCONF_ACCEPT_REDIRECTS,
    IPV4_DEVCONF_FORWARDING,
    IPV4_DEVCONF_RP_FILTER,
    IPV4_DEVCONF_SEND_REDIRECTS,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTM_SETLINK,
)
from podwire.state.address import pack_mac
from podwire.state.network import Link, Neighbour, NetworkState, Route
from podwire.state.pod import CNI_PROTOCOL, PodWiring, derived_index, host_state, pod_state

_ATTEMPTS = 8
"""Numbers tried when the asked-for one is taken."""

_READY_READS = 200
"""operstate is read at most this often (8 us each): it is up after 0.05 ms, 0.21 ms at most on a quiet machine."""

_LOOPBACK = 1
"""``lo`` has this number in every namespace."""

_ADD = NLM_F_CREATE | NLM_F_EXCL


def wire(host: Netlink, wiring: PodWiring) -> bool:
    """Connects a pod; True when the link is up already, False when the kernel is still at it (``is_ready``).

    Raises: KernelNotFound when there is no such namespace; KernelExists when either name is taken; KernelError.
    Nothing is left behind then.
    """
    descriptor = open_netns(wiring.netns)
    try:
        with Netlink(descriptor) as pod:
            index = _make_pair(host, wiring, descriptor)
            try:
                _check(pod.batch(_pod_messages(wiring, index)))
            except KernelError:
                with contextlib.suppress(KernelError):
                    host.request(Message(RTM_DELLINK, 0, link_codec.header(index), "delete", wiring.link))
                raise
    finally:
        os.close(descriptor)
    return any(is_ready(host, wiring.link) for _ in range(_READY_READS))


def _make_pair(host: Netlink, wiring: PodWiring, descriptor: int) -> int:
    """Makes both ends and all of the host's side; returns their number.

    Raises: KernelError, with nothing left behind.
    """
    for attempt in range(_ATTEMPTS):
        index = derived_index(wiring.link, attempt)
        failures = host.batch(_host_messages(wiring, index, descriptor))
        if 0 in failures:
            if failures[0].errno == errno.EBUSY and attempt < _ATTEMPTS - 1:
                continue
            raise failures[0]
        if failures:
            with contextlib.suppress(KernelError):
                host.request(Message(RTM_DELLINK, 0, link_codec.header(index), "delete", wiring.link))
            _check(failures)
        return index
    raise AssertionError("unreachable: the last attempt returns or raises")


def _check(failures: dict[int, KernelError]) -> None:
    for failure in failures.values():
        raise failure


def _host_messages(wiring: PodWiring, index: int, descriptor: int) -> list[Message]:
    parameters = {
        IPV4_DEVCONF_FORWARDING: 1,
        IPV4_DEVCONF_ACCEPT_REDIRECTS: 0,
        IPV4_DEVCONF_SEND_REDIRECTS: 0,
        IPV4_DEVCONF_RP_FILTER: int(wiring.spoof_check),
    }
    settings = link_codec.encode_parameters(index, parameters, addr_gen_none=_has_ipv6())
    if wiring.alias:
        settings += attribute(IFLA_IFALIAS, wiring.alias.encode())
    link = Link(wiring.link, "veth", peer=wiring.interface, peer_netns=wiring.netns)
    return [
        Message(RTM_NEWLINK, _ADD, _encode_pair(wiring, index, descriptor), "add", link),
        Message(RTM_SETLINK, 0, settings, "set", link),
        *_state_messages(host_state(wiring), {wiring.link: index}),
    ]


def _encode_pair(wiring: PodWiring, index: int, descriptor: int) -> bytes:
    peer = Link(wiring.interface, mtu=wiring.mtu, mac=wiring.mac, index=index)
    parts = [
        link_codec.header(index, IFF_UP, IFF_UP),
        text(IFLA_IFNAME, wiring.link),
        attribute(IFLA_ADDRESS, pack_mac(wiring.host_mac)),
    ]
    if wiring.mtu:
        parts.append(u32(IFLA_MTU, wiring.mtu))
    data = link_codec.encode_peer(peer, descriptor)
    parts.append(nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, data)))
    return b"".join(parts)


def _pod_messages(wiring: PodWiring, index: int) -> list[Message]:
    indexes = {wiring.interface: index}
    eth0 = Link(wiring.interface)
    messages = [Message(RTM_SETLINK, 0, link_codec.header(_LOOPBACK, IFF_UP, IFF_UP), "set", Link("lo"))]
    if _has_ipv6():
        quiet = link_codec.encode_parameters(index, {}, addr_gen_none=True)
        messages.append(Message(RTM_SETLINK, 0, quiet, "set", eth0))
    messages.append(Message(RTM_SETLINK, 0, link_codec.header(index, IFF_UP, IFF_UP), "set", eth0))
    return messages + _state_messages(pod_state(wiring), indexes)


def _state_messages(state: NetworkState, indexes: dict[str, int]) -> list[Message]:
    """Addresses, neighbours, routes; those to a gateway come before those through it."""
    routes = sorted(state.routes, key=lambda x: bool(x.via))
    return [
        *(Message(RTM_NEWADDR, _ADD, encode(x, indexes), "add", x) for x in state.addresses),
        *(
            Message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, encode(x, indexes), "add", x)
            for x in state.neighbours
        ),
        *(Message(RTM_NEWROUTE, _ADD, encode(x, indexes), "add", x) for x in routes),
    ]


def _has_ipv6() -> bool:
    """A kernel booted with ipv6.disable=1 refuses every message that speaks of AF_INET6."""
    return Path("/proc/sys/net/ipv6").exists()


def is_ready(host: Netlink, link: str) -> bool:
    """Whether the device's operational state is up: before, the kernel drops what is sent to it.

    Raises: KernelNotFound when there is no such device.
    """
    return read_raw_link(host, link).operstate == IF_OPER_UP


def unwire(host: Netlink, link: str, addresses: Iterable[str], proto: int = CNI_PROTOCOL) -> bool:
    """Takes a pod off the network in 0.2 ms: its routes, neighbours, and the device into the group to be swept.

    Returns False when there was no such device. Deleting the pod's namespace takes the device away as well.

    Raises: KernelError.
    """
    wiring = PodWiring(link, "", tuple(addresses), proto=proto)
    state = host_state(wiring)
    try:
        index = read_raw_link(host, link).link.index
    except KernelNotFound:
        return False
    indexes = {link: index}
    gone: list[tuple[int, Route | Neighbour]] = [(RTM_DELROUTE, x) for x in state.routes]
    gone += [(RTM_DELNEIGH, x) for x in state.neighbours]
    messages = [Message(kind, 0, encode(x, indexes), "delete", x) for kind, x in gone]
    messages.append(Message(RTM_SETLINK, 0, link_codec.encode_group(index, GRAVE), "delete", f"link {link}"))
    _check({at: x for at, x in host.batch(messages).items() if not isinstance(x, KernelNotFound)})
    return True


def sweep(netns: Path | str | int | None = None) -> bool:
    """Deletes all devices that ``unwire`` left; False when there were none. For a thread: it takes 20-40 ms.

    Raises: KernelError.
    """
    body = link_codec.encode_delete_group(GRAVE)
    with Netlink(netns) as host:
        try:
            host.request(Message(RTM_DELLINK, 0, body, "delete", "unwired pod links"))
        except KernelNotFound:
            return False
    return True

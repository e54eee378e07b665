"""The pod interfaces of other CNI plugins as the node sees them: veths, their peers, and bridges.

The peer of a veth is in the pod's namespace. The kernel numbers that namespace (``IFLA_LINK_NETNSID``) and lists the
addresses of a namespace by its number. So the addresses behind a device are known without entering the namespace and
without trusting packets. Cost: one dump of devices, and one of addresses per requested veth (0.05 ms).

Packets between two ports of one bridge do not pass the IP hooks, unless ``br_netfilter`` is loaded and either the
namespace (sysctl ``net.bridge.bridge-nf-call-iptables``) or the bridge (its attribute ``nf_call_iptables``) enables it.
The attribute has no effect without the module. Source: ``net/bridge/br_netfilter_hooks.c``.
"""

import errno
import shutil
from typing import NamedTuple

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import link_codec, route_codec, sysctl
from podwire.kernel.attributes import nested, number, parse, string, text, u8
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import (
    IFLA_BR_NF_CALL_IP6TABLES,
    IFLA_BR_NF_CALL_IPTABLES,
    IFLA_IFNAME,
    IFLA_INFO_DATA,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_NEWLINK,
)
from podwire.runtime.child import call

MODULE = "br_netfilter"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S = 10.0
_CALLS = {
    "ip": (IFLA_BR_NF_CALL_IPTABLES, "net/bridge/bridge-nf-call-iptables"),
    "ip6": (IFLA_BR_NF_CALL_IP6TABLES, "net/bridge/bridge-nf-call-ip6tables"),
}


class Wire(NamedTuple):
    """A veth whose peer is in another namespace."""

    name: str
    bridge: str
    """The bridge that has the veth as a port; empty: none."""
    netns_number: int
    """The number of the peer's namespace; -1: the kernel has no number for it."""
    peer_index: int
    """The peer's interface index in that namespace."""


def read_wires(netlink: Netlink) -> tuple[Wire, ...]:
    """Every veth with its peer in another namespace, in the kernel's order.

    Raises: KernelError.
    """
    body = link_codec.encode_dump()
    links = [link_codec.decode(payload) for payload in netlink.dump(Message(RTM_GETLINK, 0, body, "list", "links"))]
    names = {entry.link.index: entry.link for entry in links}
    wires = []
    for entry in links:
        if entry.link.kind == "veth" and entry.lower_elsewhere:
            master = names.get(entry.master)
            bridge = master.name if master is not None and master.kind == "bridge" else ""
            wires.append(Wire(entry.link.name, bridge, entry.elsewhere, entry.lower))
    return tuple(wires)


def addresses_behind(netlink: Netlink, wire: Wire) -> frozenset[str]:
    """The addresses of a veth's peer, without link-local scope; empty when the peer does not exist.

    Raises: KernelError.
    """
    if wire.netns_number < 0:
        return frozenset()
    body = route_codec.encode_address_dump_elsewhere(wire.netns_number)
    try:
        answers = netlink.dump(Message(RTM_GETADDR, 0, body, "list", f"addresses behind {wire.name}"))
    except KernelNotFound:
        return frozenset()
    addresses = set()
    for payload in answers:
        address = route_codec.decode_address(payload, {wire.peer_index: wire.name})
        if address is not None and not address.cidr.startswith("fe80:"):
            addresses.add(address.cidr.partition("/")[0])
    return frozenset(addresses)


def missing_hooks(netlink: Netlink, bridge: str) -> dict[str, str]:
    """The families whose packets between ports of a bridge pass no IP hook, each with the reason.

    Raises: KernelError.
    """
    paths = [path for _, path in _CALLS.values()]
    sysctls = {entry.path: entry.value for entry in sysctl.snapshot(paths, netlink.netns)}
    if not sysctls:
        return dict.fromkeys(_CALLS, f"the kernel module {MODULE} is not loaded")
    attributes = _attributes(netlink, bridge)
    missing = {}
    for family, (attribute, path) in _CALLS.items():
        if sysctls.get(path) != "1" and not number(attributes, attribute):
            missing[family] = f"{path.removeprefix('net/bridge/')} is {sysctls.get(path, 'missing')}"
    return missing


def _attributes(netlink: Netlink, bridge: str) -> dict[int, bytes]:
    body = link_codec.encode_get(bridge)
    payload = netlink.get(Message(RTM_GETLINK, 0, body, "read", f"bridge {bridge}"))[1]
    info = parse(parse(payload, link_codec.IFINFOMSG.size).get(IFLA_LINKINFO, b""))
    return parse(info.get(IFLA_INFO_DATA, b"")) if string(info, IFLA_INFO_KIND) == "bridge" else {}


def enable_hooks(netlink: Netlink, bridge: str) -> None:
    """Makes packets between ports of this bridge pass the IP hooks; other bridges do not change.

    When the module has to be loaded first, the kernel enables the hooks for all bridges.

    Raises: KernelError.
    """
    enabled = (u8(attribute, 1) for attribute, _ in _CALLS.values())
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "bridge"), nested(IFLA_INFO_DATA, *enabled))
    body = link_codec.header() + text(IFLA_IFNAME, bridge) + info
    netlink.request(Message(RTM_NEWLINK, 0, body, "set", f"bridge {bridge} nf_call_iptables"))


def load_module() -> None:
    """Loads the kernel module ``br_netfilter``.

    Raises: KernelError with the message of modprobe.
    """
    program = shutil.which("modprobe", path=_PATH)
    if program is None:
        raise KernelError("load", f"module {MODULE}", errno.ENOENT, "modprobe is not installed")
    done = call((program, MODULE), env={"PATH": _PATH, "LC_ALL": "C"}, timeout_s=_TIMEOUT_S)
    if done.code != 0:
        message = " ".join(done.errors.decode(errors="replace").split())
        raise KernelError("load", f"module {MODULE}", errno.ENOENT, message or f"modprobe ended with {done.code}")

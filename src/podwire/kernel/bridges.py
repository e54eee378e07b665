"""What other programs' pod wiring looks like from the node: veths, their other ends, and bridges.

The other end of a veth lies in the pod's namespace, which the kernel numbers (``IFLA_LINK_NETNSID``), and it lists the
addresses of a namespace by that number: so it is known, without entering the namespace and without believing any
packet, which addresses are behind a device. One dump of devices, and one of addresses for each veth that is asked for
(0.05 ms).

Packets between two ports of one bridge do not pass the hooks of IP, unless ``br_netfilter`` is loaded and either the
namespace (sysctl ``net.bridge.bridge-nf-call-iptables``) or the bridge itself (its attribute ``nf_call_iptables``) asks
for it. The attribute does nothing without the module. Source: ``net/bridge/br_netfilter_hooks.c``.
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
    """A veth whose other end is in another namespace."""

    name: str
    bridge: str
    """The bridge that it is a port of; empty: none."""
    place: int
    """The number of the other end's namespace; -1: the kernel has none for it."""
    far: int
    """The other end's number there."""


def read_wires(netlink: Netlink) -> tuple[Wire, ...]:
    """Every such veth, in the order of the kernel.

    Raises: KernelError.
    """
    body = link_codec.encode_dump()
    found = [link_codec.decode(payload) for _, payload in netlink.dump(Message(RTM_GETLINK, 0, body, "list", "links"))]
    names = {entry.link.index: entry.link for entry in found}
    wires = []
    for entry in found:
        if entry.link.kind == "veth" and entry.lower_elsewhere:
            master = names.get(entry.master)
            bridge = master.name if master is not None and master.kind == "bridge" else ""
            wires.append(Wire(entry.link.name, bridge, entry.elsewhere, entry.lower))
    return tuple(wires)


def addresses_behind(netlink: Netlink, wire: Wire) -> frozenset[str]:
    """The addresses of a veth's other end, without those that are valid on the link alone; none when it is gone.

    Raises: KernelError.
    """
    if wire.place < 0:
        return frozenset()
    body = route_codec.encode_address_dump_elsewhere(wire.place)
    try:
        answers = netlink.dump(Message(RTM_GETADDR, 0, body, "list", f"addresses behind {wire.name}"))
    except KernelNotFound:
        return frozenset()
    found = set()
    for _, payload in answers:
        address = route_codec.decode_address(payload, {wire.far: wire.name})
        if address is not None and not address.cidr.startswith("fe80:"):
            found.add(address.cidr.partition("/")[0])
    return frozenset(found)


def unseen(netlink: Netlink, bridge: str) -> dict[str, str]:
    """The families whose packets between ports of a bridge pass no hook of IP, each with what is missing, in words.

    Raises: KernelError.
    """
    told = {each.path: each.value for each in sysctl.snapshot((path for _, path in _CALLS.values()), netlink.netns)}
    if not told:
        return dict.fromkeys(_CALLS, f"the kernel module {MODULE} is not loaded")
    own = _attributes(netlink, bridge)
    missing = {}
    for family, (attribute, path) in _CALLS.items():
        if told.get(path) != "1" and not number(own, attribute):
            missing[family] = f"{path.removeprefix('net/bridge/')} is {told.get(path, 'missing')}"
    return missing


def _attributes(netlink: Netlink, bridge: str) -> dict[int, bytes]:
    body = link_codec.encode_get(bridge)
    payload = netlink.get(Message(RTM_GETLINK, 0, body, "read", f"bridge {bridge}"))[1]
    info = parse(parse(payload, link_codec.IFINFOMSG.size).get(IFLA_LINKINFO, b""))
    return parse(info.get(IFLA_INFO_DATA, b"")) if string(info, IFLA_INFO_KIND) == "bridge" else {}


def show(netlink: Netlink, bridge: str) -> None:
    """Makes packets between ports of this bridge pass the IP hooks; other bridges do not change.

    Where the module has to be loaded first, the kernel turns it on for all of them.

    Raises: KernelError.
    """
    wanted = (u8(attribute, 1) for attribute, _ in _CALLS.values())
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "bridge"), nested(IFLA_INFO_DATA, *wanted))
    body = link_codec.header() + text(IFLA_IFNAME, bridge) + info
    netlink.request(Message(RTM_NEWLINK, 0, body, "set", f"bridge {bridge} nf_call_iptables"))


def load_module() -> None:
    """Loads the kernel module that the hooks need.

    Raises: KernelError with the words of modprobe.
    """
    program = shutil.which("modprobe", path=_PATH)
    if program is None:
        raise KernelError("load", f"module {MODULE}", errno.ENOENT, "modprobe is not installed")
    done = call((program, MODULE), env={"PATH": _PATH, "LC_ALL": "C"}, timeout_s=_TIMEOUT_S)
    if done.code != 0:
        words = " ".join(done.errors.decode(errors="replace").split())
        raise KernelError("load", f"module {MODULE}", errno.ENOENT, words or f"modprobe ended with {done.code}")

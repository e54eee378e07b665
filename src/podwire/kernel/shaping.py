"""Bandwidth limits of pods: token buckets on the node's end of a veth pair and on an ifb device.

Traffic from the pod is redirected by a filter at the ingress of the node's end, with preference 1. A discipline
``clsact`` that is there already (programs of the DNS server on kernels before 6.6) is used too. A device that has a
queueing discipline or a filter of that preference belongs to another program in this respect, and is refused.
Disciplines have no place for a mark of the owner; only a bucket with exactly the numbers of the limit is removed.

Cost: ADD about 0.3 ms besides the creation of the ifb device.
Sources: include/uapi/linux/pkt_sched.h, pkt_cls.h, tc_act/tc_mirred.h; net/sched/sch_api.c, cls_u32.c, act_mirred.c.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import attributes, link_codec, network
from podwire.kernel.failure import refusal
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import (
    IFF_UP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IFLA_MTU,
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_DELLINK,
    RTM_NEWLINK,
    RTM_SETLINK,
)
from podwire.state.shaping import PodLimits, TokenBucket

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
_TC_H_ROOT, _TC_H_INGRESS, _INGRESS_FILTERS = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFFFFF2
_INGRESS_HANDLE, _ROOT_HANDLE = 0xFFFF0000, 0x00010000
_CLASS = 0x00010001
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_TBF_PARMS, _TCA_TBF_RATE64 = 1, 4
_TCA_U32_CLASSID, _TCA_U32_SEL, _TCA_U32_ACT = 1, 5, 7
_TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_MIRRED_PARMS = 1, 2, 2
_TC_U32_TERMINAL, _TC_ACT_STOLEN, _TCA_EGRESS_REDIR = 1, 4, 1
_IFLA_TXQLEN = 13
_ETH_P_ALL = 3
_PREFERENCE = 1
_INFO = _PREFERENCE << 16 | socket.htons(_ETH_P_ALL)
_TCMSG = struct.Struct("=BxxxiIII")
_TBF = struct.Struct("=8xI8xIIII")
_SELECT_ALL = struct.pack("=BBBxHHhhI", _TC_U32_TERMINAL, 0, 1, 0, 0, 0, 0, 0) + bytes(16)
_MIRRED = struct.Struct("=IIiiiiI")
_U32 = 0xFFFFFFFF


class PodShaping:
    """The limits of pods in a node's network namespace (None: that of the calling thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path

    def ticks_per_us(self) -> float:
        """The ticks of traffic control in a microsecond (15.625 since Linux 2.6.25)."""
        to_us, from_us, factor = (
            int(word, 16) for word in Path("/proc/net/psched").read_text(encoding="ascii").split()[:3]
        )
        return to_us / from_us * factor / 1_000_000

    def node_end(self, netns: str, name: str) -> str:
        """The name of the node's end of a pod's veth pair; empty when the device is no veth or its peer is elsewhere.

        Raises: KernelNotFound when there is no such namespace or device; KernelError.
        """
        with Netlink(netns) as pod:
            end = network.read_raw_link(pod, name)
        if end.link.kind != "veth":
            return ""
        with Netlink(self._netns_path) as node:
            own = (link for link in network.read_links(node) if link.index == end.lower and link.kind == "veth")
            return next((link.name for link in own), "")

    def add(self, limits: PodLimits) -> str:
        """Limits a pod; returns the hardware address of the ifb device, empty when there is none.

        Raises: KernelExists when the device has a discipline of another program; KernelError. Nothing is left behind.
        """
        with Netlink(self._netns_path) as netlink:
            device = network.read_link(netlink, limits.device)
            self._check_free(netlink, limits, device.index)
            try:
                if limits.to_pod is not None:
                    _add_bucket(netlink, device.index, limits.to_pod, limits.device)
                return self._limit_from_pod(netlink, limits, device.index, device.mtu)
            except KernelError:
                _remove(netlink, limits)
                raise

    def _check_free(self, netlink: Netlink, limits: PodLimits, index: int) -> None:
        roots = [kind for parent, handle, kind, _ in _disciplines(netlink, index) if parent == _TC_H_ROOT and handle]
        if limits.to_pod is not None and roots:
            raise refusal("limit", limits.device, errno.EEXIST, f"it has the discipline {roots[0]}")
        if limits.from_pod is None:
            return
        if any(preference == _PREFERENCE for preference in _filter_preferences(netlink, index)):
            raise refusal("limit", limits.device, errno.EEXIST, f"it has a filter with preference {_PREFERENCE}")
        if any(link.name == limits.ifb for link in network.read_links(netlink)):
            raise refusal("create", limits.ifb, errno.EEXIST, "another interface of the container may have it")

    def _limit_from_pod(self, netlink: Netlink, limits: PodLimits, index: int, mtu: int) -> str:
        if limits.from_pod is None:
            return ""
        body = link_codec.header(0, IFF_UP, IFF_UP) + attributes.text(IFLA_IFNAME, limits.ifb)
        body += attributes.u32(IFLA_MTU, mtu) + attributes.u32(_IFLA_TXQLEN, 0)
        body += attributes.nested(IFLA_LINKINFO, attributes.text(IFLA_INFO_KIND, "ifb"))
        netlink.request(Message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, "create", f"link {limits.ifb}"))
        ifb = network.read_link(netlink, limits.ifb)
        alias = link_codec.header(ifb.index) + attributes.attribute(IFLA_IFALIAS, limits.alias.encode())
        netlink.request(Message(RTM_SETLINK, 0, alias, "set the alias of", f"link {limits.ifb}"))
        _add_bucket(netlink, ifb.index, limits.from_pod, limits.ifb)
        head = _TCMSG.pack(0, index, _INGRESS_HANDLE, _TC_H_INGRESS, 0) + attributes.text(_TCA_KIND, "ingress")
        with contextlib.suppress(KernelExists):  # A clsact is there.
            netlink.request(Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, head, "add", f"ingress {limits.device}"))
        netlink.request(_redirect(index, ifb.index, limits.device))
        return ifb.mac

    def missing(self, limits: PodLimits) -> str:
        """The first limit that the kernel does not hold, as text; empty when it holds all.

        Raises: KernelNotFound when the node's end is gone; KernelError.
        """
        with Netlink(self._netns_path) as netlink:
            links = {link.name: link.index for link in network.read_links(netlink)}
            if limits.device not in links:
                return f"{limits.device} does not exist"
            checks = [(limits.device, limits.to_pod)] if limits.to_pod is not None else []
            if limits.from_pod is not None:
                if limits.ifb not in links:
                    return f"{limits.ifb} does not exist"
                if _PREFERENCE not in _filter_preferences(netlink, links[limits.device]):
                    return f"{limits.device} has no filter that redirects to {limits.ifb}"
                checks.append((limits.ifb, limits.from_pod))
            for name, bucket in checks:
                held = _root_bucket(netlink, links[name])
                if held != bucket:
                    return f"{name} has {held or 'no token bucket'}, expected {bucket}"
        return ""

    def remove(self, limits: PodLimits) -> None:
        """Removes the limits of a pod; what is gone already is ignored.

        Raises: KernelError.
        """
        with Netlink(self._netns_path) as netlink:
            _remove(netlink, limits)

    def remove_ifb(self, name: str) -> None:
        """Removes an ifb device without an alias: that of a pod which the reference plugin limited.

        Raises: KernelError.
        """
        with Netlink(self._netns_path) as netlink:
            _remove_ifb(netlink, name, "")


def _remove(netlink: Netlink, limits: PodLimits) -> None:
    index = next((link.index for link in network.read_links(netlink) if link.name == limits.device), 0)
    with contextlib.suppress(KernelNotFound):  # The device may go at any moment.
        if index and limits.to_pod is not None and _root_bucket(netlink, index) == limits.to_pod:
            body = _TCMSG.pack(0, index, _ROOT_HANDLE, _TC_H_ROOT, 0)
            netlink.request(Message(RTM_DELQDISC, 0, body, "delete", f"bucket of {limits.device}"))
    with contextlib.suppress(KernelNotFound):
        if index and limits.from_pod is not None and _PREFERENCE in _filter_preferences(netlink, index):
            body = _TCMSG.pack(0, index, 0, _INGRESS_FILTERS, _INFO)
            netlink.request(Message(RTM_DELTFILTER, 0, body, "delete", f"filter of {limits.device}"))
        kinds = [kind for parent, _, kind, _ in _disciplines(netlink, index) if parent == _TC_H_INGRESS]
        if limits.from_pod is not None and "ingress" in kinds and not list(_filter_preferences(netlink, index)):
            body = _TCMSG.pack(0, index, _INGRESS_HANDLE, _TC_H_INGRESS, 0)
            netlink.request(Message(RTM_DELQDISC, 0, body, "delete", f"ingress of {limits.device}"))
    if limits.from_pod is not None:
        _remove_ifb(netlink, limits.ifb, limits.alias)


def _remove_ifb(netlink: Netlink, name: str, alias: str) -> None:
    """Deletes an ifb device with this alias or none: the alias is set after the device was made."""
    links = [link for link in network.read_links(netlink) if link.name == name]
    if links and links[0].kind == "ifb" and links[0].alias in ("", alias):
        with contextlib.suppress(KernelNotFound):
            body = link_codec.header(links[0].index)
            netlink.request(Message(RTM_DELLINK, 0, body, "delete", f"link {name}"))


def _add_bucket(netlink: Netlink, index: int, bucket: TokenBucket, name: str) -> None:
    parameters = _TBF.pack(min(bucket.rate, _U32), 0, bucket.limit, bucket.buffer, 0)
    options = [attributes.attribute(_TCA_TBF_PARMS, parameters)]
    if bucket.rate > _U32:
        options.append(attributes.attribute(_TCA_TBF_RATE64, struct.pack("=Q", bucket.rate)))
    body = _TCMSG.pack(0, index, _ROOT_HANDLE, _TC_H_ROOT, 0) + attributes.text(_TCA_KIND, "tbf")
    body += attributes.nested(_TCA_OPTIONS, *options)
    netlink.request(Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, "add", f"bucket of {name}"))


def _root_bucket(netlink: Netlink, index: int) -> TokenBucket | None:
    for parent, handle, kind, options in _disciplines(netlink, index):
        if (parent, handle, kind) == (_TC_H_ROOT, _ROOT_HANDLE, "tbf"):
            values = attributes.parse(options)
            rate, _, limit, buffer, _ = _TBF.unpack_from(values[_TCA_TBF_PARMS])
            wide = values.get(_TCA_TBF_RATE64)
            return TokenBucket(struct.unpack("=Q", wide)[0] if wide else rate, limit, buffer)
    return None


def _disciplines(netlink: Netlink, index: int) -> Iterator[tuple[int, int, str, bytes]]:
    """Parent, handle, kind and options of the disciplines of a device."""
    body = _TCMSG.pack(0, index, 0, 0, 0)
    for payload in netlink.dump(Message(RTM_GETQDISC, 0, body, "list", "disciplines")):
        _, device, handle, parent, _ = _TCMSG.unpack_from(payload)
        if device == index:
            values = attributes.parse(payload, _TCMSG.size)
            yield parent, handle, attributes.string(values, _TCA_KIND), values.get(_TCA_OPTIONS, b"")


def _filter_preferences(netlink: Netlink, index: int) -> Iterator[int]:
    """The preferences of the filters at the ingress of a device."""
    if not any(parent == _TC_H_INGRESS for parent, _, _, _ in _disciplines(netlink, index)):
        return
    body = _TCMSG.pack(0, index, 0, _INGRESS_FILTERS, 0)
    for payload in netlink.dump(Message(RTM_GETTFILTER, 0, body, "list", "filters")):
        yield _TCMSG.unpack_from(payload)[4] >> 16


def _redirect(index: int, target: int, name: str) -> Message:
    """The filter that redirects what a device receives to another one."""
    parameters = _MIRRED.pack(0, 0, _TC_ACT_STOLEN, 0, 0, _TCA_EGRESS_REDIR, target)
    action = attributes.nested(
        1,
        attributes.text(_TCA_ACT_KIND, "mirred"),
        attributes.nested(_TCA_ACT_OPTIONS, attributes.attribute(_TCA_MIRRED_PARMS, parameters)),
    )
    options = attributes.nested(
        _TCA_OPTIONS,
        attributes.u32(_TCA_U32_CLASSID, _CLASS),
        attributes.attribute(_TCA_U32_SEL, _SELECT_ALL),
        attributes.nested(_TCA_U32_ACT, action),
    )
    body = _TCMSG.pack(0, index, 0, _INGRESS_FILTERS, _INFO) + attributes.text(_TCA_KIND, "u32") + options
    return Message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body, "add", f"filter of {name}")

"""Attaches BPF programs to devices of this thread's namespace: traffic control (TCX or clsact) and XDP.

How it works: TCX (Linux 6.6) and XDP (5.9) attachments are links, pinned in the folder of their owner, so that they
outlive the process; the link's pin has the name ``<device>-<hook>``. Where the kernel has no TCX, a filter of clsact
with the name ``podwire/<folder>`` at a preference of its own does the same. A program is replaced in place: every
packet meets the old program or the new one. Programs, filters and disciplines of others stay: TCX and filters run one
after the other, and a device that has an XDP program of another owner refuses with EBUSY.

An attachment ends with its device. Cost: 30 us for an attachment.

Sources: include/uapi/linux/bpf.h, include/uapi/linux/pkt_sched.h, net/sched/cls_bpf.c, kernel/bpf/tcx.c.
"""

import contextlib
import errno
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import attributes
from podwire.kernel.bpf_syscall import (
    BPF_TCX_EGRESS,
    BPF_TCX_INGRESS,
    BPF_XDP,
    create_link,
    link_facts,
    open_pin,
    pin,
    update_link,
)
from podwire.kernel.failure import refusal
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE

_LINK_TYPES = {"ingress": BPF_TCX_INGRESS, "egress": BPF_TCX_EGRESS, "xdp": BPF_XDP}
_XDP_FLAGS_SKB_MODE = 1 << 1

# Numbers of linux/rtnetlink.h, linux/pkt_sched.h and linux/pkt_cls.h.
RTM_NEWQDISC, RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 36, 44, 45, 46
TC_H_CLSACT, TC_H_CLSACT_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_PARENTS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS, TCA_BPF_ID = 6, 7, 8, 11
TCA_BPF_FLAG_ACT_DIRECT = 1
_PREFERENCES = range(28000, 29000)
"""Preferences of podwire's filters: each owner has one of its own, by its name."""
_ETH_P_ALL = 3
_TCMSG = struct.Struct("=BxxxiIII")


class Attached(NamedTuple):
    """The program, by its number, at a hook of a device; 0: the device of a pinned link is gone."""

    device: str
    hook: str
    program: int


class BpfAttachments:
    """The attachments of one owner; ``links`` is the folder of its pinned links, ``name`` that of its filters."""

    def __init__(self, links: Path, name: str, *, tcx: bool) -> None:
        self._links = links
        self._name = f"podwire/{name}"
        preference = _PREFERENCES[zlib.crc32(name.encode()) % len(_PREFERENCES)]
        self._info = preference << 16 | socket.htons(_ETH_P_ALL)
        self._tcx = tcx

    def read(self) -> tuple[Attached, ...]:
        """The attachments of the owner; those to devices of other namespaces count as gone.

        Raises: KernelError.
        """
        return (*self._pinned(), *(() if self._tcx else self._filters()))

    def _pinned(self) -> Iterator[Attached]:
        for path in sorted(self._links.iterdir()) if self._links.is_dir() else ():
            device, _, hook = path.name.rpartition("-")
            try:
                link = open_pin(str(path))
            except KernelNotFound:
                continue
            try:
                facts = link_facts(link)
            finally:
                os.close(link)
            present = facts.interface_index != 0 and index_of(device) == facts.interface_index
            yield Attached(device, hook, facts.program if present else 0)

    def attach(self, device: str, hook: str, program: int) -> None:
        """Puts a program at a hook, in the place of the owner's program there.

        Raises: KernelNotFound without the device; KernelError.
        """
        index = index_of(device)
        if not index:
            raise refusal("attach BPF program to", device, errno.ENODEV)
        if hook != "xdp" and not self._tcx:
            self._filter(device, index, hook, program)
            return
        path = self._links / f"{device}-{hook}"
        with contextlib.suppress(KernelNotFound):
            link = open_pin(str(path))
            try:
                if link_facts(link).interface_index == index:
                    update_link(link, program, device)
                    return
            finally:
                os.close(link)
            path.unlink()
        flags = _XDP_FLAGS_SKB_MODE if hook == "xdp" else 0
        link = create_link(program, index, _LINK_TYPES[hook], flags, f"{device} at {hook}")
        try:
            pin(link, str(path))
        finally:
            os.close(link)

    def detach(self, device: str, hook: str) -> None:
        """Ends an attachment; has no effect when there is none.

        Raises: KernelError.
        """
        with contextlib.suppress(FileNotFoundError):
            (self._links / f"{device}-{hook}").unlink()
        index = index_of(device)
        own = any((held.device, held.hook) == (device, hook) for held in (() if self._tcx else self._filters()))
        if own and index:
            body = _TCMSG.pack(0, index, 1, _PARENTS[hook], self._info)
            body += attributes.text(TCA_KIND, "bpf")
            with Netlink() as netlink, contextlib.suppress(KernelNotFound):
                netlink.request(Message(RTM_DELTFILTER, 0, body, "delete", f"filter of {device}"))

    # -- clsact, for kernels before 6.6

    def _filter(self, device: str, index: int, hook: str, program: int) -> None:
        with Netlink() as netlink:
            body = _TCMSG.pack(0, index, TC_H_CLSACT_HANDLE, TC_H_CLSACT, 0) + attributes.text(TCA_KIND, "clsact")
            with contextlib.suppress(KernelExists):
                netlink.request(Message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, "add", f"clsact of {device}"))
            options = attributes.nested(
                TCA_OPTIONS,
                attributes.u32(TCA_BPF_FD, program),
                attributes.text(TCA_BPF_NAME, self._name),
                attributes.u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT),
            )
            head = _TCMSG.pack(0, index, 1, _PARENTS[hook], self._info)
            body = head + attributes.text(TCA_KIND, "bpf") + options
            own = any((held.device, held.hook) == (device, hook) for held in self._filters())
            flags = NLM_F_CREATE | (NLM_F_REPLACE if own else NLM_F_EXCL)
            netlink.request(Message(RTM_NEWTFILTER, flags, body, "add", f"filter of {device} at {hook}"))

    def _filters(self) -> Iterator[Attached]:
        with Netlink() as netlink:
            for index, device in socket.if_nameindex():
                for hook, parent in _PARENTS.items():
                    body = _TCMSG.pack(0, index, 0, parent, 0)
                    try:
                        dumped = netlink.dump(Message(RTM_GETTFILTER, 0, body, "list", f"filters of {device}"))
                    except KernelError:
                        continue  # The device has no discipline with such filters, or is gone.
                    for payload in dumped:
                        options = attributes.parse(attributes.parse(payload, _TCMSG.size).get(TCA_OPTIONS, b""))
                        if attributes.string(options, TCA_BPF_NAME) == self._name:
                            yield Attached(device, hook, attributes.number(options, TCA_BPF_ID))


def index_of(device: str) -> int:
    """The interface index of a device of this thread's namespace; 0 when there is none."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0

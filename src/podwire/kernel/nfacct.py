"""Named packet counters for rules of iptables (nfnetlink_acct), as nfacct(8) shows them.

A counter belongs to a network namespace and not to a rule, so it keeps its value when rules are replaced. The kernel
refuses to remove a counter that a rule names. Source: include/uapi/linux/netfilter/nfnetlink_acct.h.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from podwire.errors import KernelError, KernelExists
from podwire.kernel.attributes import attribute, parse
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import (
    NETLINK_NETFILTER,
    NFACCT_NAME,
    NFACCT_PKTS,
    NFNL_MSG_ACCT_DEL,
    NFNL_MSG_ACCT_GET,
    NFNL_MSG_ACCT_NEW,
    NFNL_SUBSYS_ACCT,
    NLM_F_CREATE,
    NLM_F_EXCL,
)

_NFGENMSG = struct.pack("=BBH", 0, 0, 0)


class Counters:
    """The named counters of one network namespace (None: that of this process).

    A kernel without nfnetlink causes an error at the first use.
    """

    def __init__(self, netns: Path | str | int | None = None) -> None:
        self._netns = netns
        self._opened: Netlink | None = None

    @property
    def _netlink(self) -> Netlink:
        if self._opened is None:
            self._opened = Netlink(self._netns, NETLINK_NETFILTER)
        return self._opened

    def __enter__(self) -> "Counters":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; the counters stay."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def make(self, names: Iterable[str]) -> None:
        """Creates the missing counters.

        Raises: KernelError, also on a kernel without such counters.
        """
        for name in names:
            try:
                self._netlink.request(_about(NFNL_MSG_ACCT_NEW, NLM_F_CREATE | NLM_F_EXCL, name))
            except KernelExists:
                continue

    def remove(self, names: Iterable[str]) -> None:
        """Removes the counters that exist and that no rule names."""
        for name in names:
            try:
                self._netlink.request(_about(NFNL_MSG_ACCT_DEL, 0, name))
            except KernelError:
                continue

    def packets(self) -> dict[str, int]:
        """The packets of each counter by name.

        Raises: KernelError.
        """
        kind = NFNL_SUBSYS_ACCT << 8 | NFNL_MSG_ACCT_GET
        counts: dict[str, int] = {}
        for payload in self._netlink.dump(Message(kind, 0, _NFGENMSG, "list", "packet counters")):
            values = parse(payload, len(_NFGENMSG))
            counts[values[NFACCT_NAME].rstrip(b"\0").decode()] = int.from_bytes(values[NFACCT_PKTS], "big")
        return counts


def _about(kind: int, flags: int, name: str) -> Message:
    body = _NFGENMSG + attribute(NFACCT_NAME, name.encode() + b"\0")
    return Message(NFNL_SUBSYS_ACCT << 8 | kind, flags, body, "packet counter", name)

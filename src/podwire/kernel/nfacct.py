"""Named packet counters that rules of iptables count into (nfnetlink_acct), and what nfacct(8) shows.

A counter belongs to a network namespace, not to a rule, so it goes on counting when rules are written anew. The kernel
refuses to remove one that a rule names. Source: include/uapi/linux/netfilter/nfnetlink_acct.h.
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

    A kernel without nfnetlink is noticed when they are first asked for.
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
        """Makes those that are not there.

        Raises: KernelError, on a kernel without such counters too.
        """
        for name in names:
            try:
                self._netlink.request(_about(NFNL_MSG_ACCT_NEW, NLM_F_CREATE | NLM_F_EXCL, name))
            except KernelExists:
                continue

    def remove(self, names: Iterable[str]) -> None:
        """Removes those that are there and that no rule names."""
        for name in names:
            try:
                self._netlink.request(_about(NFNL_MSG_ACCT_DEL, 0, name))
            except KernelError:
                continue

    def packets(self) -> dict[str, int]:
        """What each has counted.

        Raises: KernelError.
        """
        kind = NFNL_SUBSYS_ACCT << 8 | NFNL_MSG_ACCT_GET
        found: dict[str, int] = {}
        for _, payload in self._netlink.dump(Message(kind, 0, _NFGENMSG, "list", "packet counters")):
            values = parse(payload, len(_NFGENMSG))
            found[values[NFACCT_NAME].rstrip(b"\0").decode()] = int.from_bytes(values[NFACCT_PKTS], "big")
        return found


def _about(kind: int, flags: int, name: str) -> Message:
    body = _NFGENMSG + attribute(NFACCT_NAME, name.encode() + b"\0")
    return Message(NFNL_SUBSYS_ACCT << 8 | kind, flags, body, "packet counter", name)

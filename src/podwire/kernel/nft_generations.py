"""Transactions of nftables as they are committed: tables, numbers of changed objects, and the program that did it.

A transaction is a row of notifications that ends with a new generation (NFT_MSG_NEWGEN), which names the process. Needs
CAP_NET_ADMIN in the namespace. Cost: the kernel makes a message for each object while a socket listens (25 us an
element), so this is for the window of a measurement.
Source: net/netfilter/nf_tables_api.c, nf_tables_gen_notify.
"""

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.failure import refusal
from podwire.kernel.nft_socket import open_socket
from podwire.state.nft import FAMILIES

_RECEIVE = 1 << 18
_FAMILY_NAMES = {number: name for name, number in FAMILIES.items()}
_OBJECTS = {
    uapi.NFT_MSG_NEWTABLE: "table", uapi.NFT_MSG_DELTABLE: "table",
    uapi.NFT_MSG_NEWCHAIN: "chain", uapi.NFT_MSG_DELCHAIN: "chain",
    uapi.NFT_MSG_NEWRULE: "rule", uapi.NFT_MSG_DELRULE: "rule",
    uapi.NFT_MSG_NEWSET: "set", uapi.NFT_MSG_DELSET: "set",
    uapi.NFT_MSG_NEWSETELEM: "element", uapi.NFT_MSG_DELSETELEM: "element",
}  # fmt: skip
_REMOVES = (
    uapi.NFT_MSG_DELTABLE, uapi.NFT_MSG_DELCHAIN, uapi.NFT_MSG_DELRULE, uapi.NFT_MSG_DELSET, uapi.NFT_MSG_DELSETELEM,
)  # fmt: skip


class NftCommit(msgspec.Struct, frozen=True):
    """One committed transaction; ``missed``: the socket was full, and objects of some transactions are not known."""

    generation: int
    process: str
    changes: dict[str, int]
    """Numbers by ``<family> <table>: +<object>`` or ``-<object>``."""
    missed: bool = False


class GenerationMonitor:
    """A subscription in one network namespace; readable when ``fileno`` is."""

    def __init__(self, netns: Path | str | int | None = None) -> None:
        """Raises: KernelError."""
        self._sock = open_socket(netns)
        try:
            self._sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, uapi.NFNLGRP_NFTABLES)
        except OSError as failure:
            self._sock.close()
            raise refusal("listen", "nftables notifications", failure.errno or 0) from failure
        self._sock.setblocking(False)
        self._changes: Counter[str] = Counter()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def close(self) -> None:
        """Stops listening."""
        self._sock.close()

    def read(self) -> Iterator[NftCommit]:
        """The transactions since the last call.

        Raises: KernelError when the socket fails.
        """
        while True:
            try:
                data = self._sock.recv(_RECEIVE)
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("receive", "nftables notifications", failure.errno or 0) from failure
                self._changes.clear()
                yield NftCommit(0, "", {}, missed=True)
                continue
            for kind, _, _, body in nl.messages(data):
                if (transaction := self._note(kind & 0xFF, body)) is not None:
                    yield transaction

    def _note(self, kind: int, body: bytes) -> NftCommit | None:
        fields = nl.attributes(body[4:])
        if kind == uapi.NFT_MSG_NEWGEN:
            changes, self._changes = dict(self._changes), Counter()
            process = nl.string(fields.get(uapi.NFTA_GEN_PROC_NAME))
            return NftCommit(nl.number(fields.get(uapi.NFTA_GEN_ID)), process, changes)
        if kind in _OBJECTS:
            table = f"{_FAMILY_NAMES.get(body[0], '')} {nl.string(fields.get(uapi.NFTA_TABLE_NAME))}"
            self._changes[f"{table}: {'-' if kind in _REMOVES else '+'}{_OBJECTS[kind]}"] += 1
        return None

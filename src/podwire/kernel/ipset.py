"""Sets of ipset(8) in one network namespace, by nfnetlink: read them, make the kernel hold them, commit changes.

:meth:`IpSets.apply` reads a set, takes the difference and writes that; an equal set is not touched. Each message is for
itself: the kernel has no transactions here, and packets see elements come and go one by one, at once. A set that is to
change as a whole is filled under another name and swapped (``ipset_diff.replacement``); nothing is swapped that was not
filled whole. Deleting what does not exist is no error. Types are modules that the kernel loads on their first use.
"""

import errno
from collections.abc import Iterable, Sequence
from pathlib import Path

from podwire.errors import KernelError, KernelNotFound, Unsupported
from podwire.kernel import ipset_codec as codec
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import NETLINK_NETFILTER, NLM_F_EXCL
from podwire.state.ipset import IpSet
from podwire.state.ipset_diff import Add, Create, Delete, Destroy, Operation, Swap, diff

_NO_SUCH_TYPE = 4098  # IPSET_ERR_FIND_TYPE


class IpSets:
    """A socket for the sets of a namespace (None: that of this thread).

    Raises: Unsupported when the kernel has no sets.
    """

    def __init__(self, netns: Path | str | int | None = None) -> None:
        self._netlink = Netlink(netns, NETLINK_NETFILTER)
        self._revisions: dict[tuple[str, str], int] = {}
        try:
            self.names()
        except KernelError as failure:
            self._netlink.close()
            if failure.errno == errno.EINVAL:
                raise Unsupported("ip_set", "2.6.39", "the kernel has no ip_set") from failure
            raise

    def __enter__(self) -> "IpSets":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; everything in the kernel stays."""
        self._netlink.close()

    def names(self) -> tuple[str, ...]:
        """The names of all sets of the namespace.

        Raises: KernelError.
        """
        found = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.names_only(), "list", "sets"))
        return tuple(codec.read_name(payload) for _, payload in found)

    def sizes(self) -> dict[str, int]:
        """The number of elements of every set of the namespace.

        Raises: KernelError.
        """
        found = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.heads_only(), "list", "sets"))
        return dict(codec.read_size(payload) for _, payload in found)

    def read(self, name: str) -> IpSet | None:
        """One set with its elements, or None.

        Raises: KernelError; Unsupported for a set of a type that is not known here.
        """
        try:
            found = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.named(name), "read", f"set {name}"))
        except KernelNotFound:
            return None
        return codec.read_set([payload for _, payload in found])

    def apply(self, want: IpSet) -> tuple[Operation, ...]:
        """Makes the kernel hold exactly this set; returns the operations that were needed.

        Raises: ValueError for what no kernel takes, before anything is done; KernelError as in :meth:`commit`.
        """
        want.check()
        operations = diff(self.read(want.name), want)
        self.commit(operations)
        return operations

    def commit(self, operations: Iterable[Operation]) -> None:
        """Performs the operations in their order.

        Raises: KernelError for the first that is refused. Elements behind it are in all the same; a swap and what
        comes after it is not done then, and what was being filled for it is taken away.
        """
        rest = list(operations)
        while rest:
            until = next((at for at, each in enumerate(rest) if at and isinstance(each, Swap)), len(rest))
            step, rest = rest[:until], rest[until:]
            try:
                self._commit(step)
            except KernelError:
                self._netlink.batch([self._encode(each) for each in rest if isinstance(each, Destroy)])
                raise

    def _commit(self, operations: Sequence[Operation]) -> None:
        messages = [self._encode(each) for each in operations]
        failures = self._netlink.batch(messages)
        for at in sorted(failures):
            if not (isinstance(operations[at], Destroy) and isinstance(failures[at], KernelNotFound)):
                raise _in_words(failures[at])

    def destroy(self, names: Iterable[str]) -> None:
        """Deletes sets; no error for a name without a set.

        Raises: KernelError for one that rules refer to; the others are gone.
        """
        self.commit([Destroy(name) for name in names])

    def _encode(self, operation: Operation) -> Message:
        match operation:
            case Create(want):
                body = codec.create(want, self._revision(want))
                return _message(codec.IPSET_CMD_CREATE, body, "create", f"set {want.name}", NLM_F_EXCL)
            case Destroy(name):
                return _message(codec.IPSET_CMD_DESTROY, codec.named(name), "destroy", f"set {name}")
            case Swap(name, other):
                return _message(codec.IPSET_CMD_SWAP, codec.pair(name, other), "swap", f"sets {name} and {other}")
            case Add(want, key):
                body = codec.change(want, key, want.elements[key])
                return _message(codec.IPSET_CMD_ADD, body, "ipset", operation)
            case Delete(want, key):
                return _message(codec.IPSET_CMD_DEL, codec.change(want, key, None), "ipset", operation)

    def _revision(self, want: IpSet) -> int:
        """The newest revision of a type that the kernel has.

        Raises: Unsupported when it has none.
        """
        kind = want.kind, want.family
        if kind not in self._revisions:
            message = _message(codec.IPSET_CMD_TYPE, codec.type_question(want), "find", f"sets of type {want.kind}")
            try:
                _, payload = self._netlink.get(message)
            except KernelError as failure:
                if failure.errno == _NO_SUCH_TYPE:
                    raise Unsupported(f"sets of type {want.kind}", detail=codec.ERRORS[_NO_SUCH_TYPE]) from failure
                raise
            self._revisions[kind] = codec.read_revision(payload)
        return self._revisions[kind]


def _message(command: int, body: bytes, operation: str, subject: object, flags: int = 0) -> Message:
    return Message(codec.NFNL_SUBSYS_IPSET << 8 | command, flags, body, operation, subject)


def _in_words(failure: KernelError) -> KernelError:
    """The failure with a text for error numbers that only ipset has."""
    words = codec.ERRORS.get(failure.errno)
    return failure if words is None else KernelError(failure.operation, failure.subject, failure.errno, words)

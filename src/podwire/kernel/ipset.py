"""Sets of ipset(8) in one network namespace, by nfnetlink: read sets, apply a desired set, commit operations.

:meth:`IpSets.apply` reads a set and writes the difference; an equal set is not changed. The kernel has no transactions
for sets: each message takes effect by itself, and packets see elements appear and disappear one by one. To change a set
as a whole, its successor is filled under another name and swapped (``ipset_diff.replacement``); a set that was not
filled completely is not swapped. Deleting a set that does not exist is not an error. The kernel loads the module of a
set type on its first use.
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
        answers = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.names_only(), "list", "sets"))
        return tuple(codec.read_name(payload) for payload in answers)

    def sizes(self) -> dict[str, int]:
        """The number of elements of every set of the namespace.

        Raises: KernelError.
        """
        answers = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.heads_only(), "list", "sets"))
        return dict(codec.read_size(payload) for payload in answers)

    def read(self, name: str) -> IpSet | None:
        """One set with its elements, or None.

        Raises: KernelError; Unsupported for a set of a type that is not known here.
        """
        try:
            answers = self._netlink.dump(_message(codec.IPSET_CMD_LIST, codec.set_name(name), "read", f"set {name}"))
        except KernelNotFound:
            return None
        return codec.read_set(answers)

    def apply(self, desired: IpSet) -> tuple[Operation, ...]:
        """Makes the kernel hold exactly this set; returns the operations that were needed.

        Raises: ValueError for a set that no kernel accepts, before any operation; KernelError as in :meth:`commit`.
        """
        desired.check()
        operations = diff(self.read(desired.name), desired)
        self.commit(operations)
        return operations

    def commit(self, operations: Iterable[Operation]) -> None:
        """Performs the operations in their order.

        Raises: KernelError for the first refused operation. Later elements of the same set are added nevertheless; a
        swap and the operations after it are not done, and the set that was filled for the swap is destroyed.
        """
        remaining = list(operations)
        while remaining:
            swaps = (at for at, operation in enumerate(remaining) if at and isinstance(operation, Swap))
            until = next(swaps, len(remaining))
            batch, remaining = remaining[:until], remaining[until:]
            try:
                self._commit(batch)
            except KernelError:
                destroys = [operation for operation in remaining if isinstance(operation, Destroy)]
                self._netlink.batch(list(map(self._encode, destroys)))
                raise

    def _commit(self, operations: Sequence[Operation]) -> None:
        messages = [self._encode(operation) for operation in operations]
        failures = self._netlink.batch(messages)
        for at in sorted(failures):
            if not (isinstance(operations[at], Destroy) and isinstance(failures[at], KernelNotFound)):
                raise _with_text(failures[at])

    def destroy(self, names: Iterable[str]) -> None:
        """Deletes sets; a name without a set is not an error.

        Raises: KernelError for a set that rules refer to; the other sets are deleted.
        """
        self.commit([Destroy(name) for name in names])

    def _encode(self, operation: Operation) -> Message:
        match operation:
            case Create(desired):
                body = codec.create(desired, self._revision(desired))
                return _message(codec.IPSET_CMD_CREATE, body, "create", f"set {desired.name}", NLM_F_EXCL)
            case Destroy(name):
                return _message(codec.IPSET_CMD_DESTROY, codec.set_name(name), "destroy", f"set {name}")
            case Swap(name, other):
                return _message(codec.IPSET_CMD_SWAP, codec.set_names(name, other), "swap", f"sets {name} and {other}")
            case Add(desired, key):
                body = codec.change(desired, key, desired.elements[key])
                return _message(codec.IPSET_CMD_ADD, body, "ipset", operation)
            case Delete(desired, key):
                return _message(codec.IPSET_CMD_DEL, codec.change(desired, key, None), "ipset", operation)

    def _revision(self, desired: IpSet) -> int:
        """The newest revision of a set type that the kernel has.

        Raises: Unsupported when the kernel does not have the type.
        """
        kind = desired.kind, desired.family
        if kind not in self._revisions:
            subject = f"sets of type {desired.kind}"
            message = _message(codec.IPSET_CMD_TYPE, codec.type_request(desired), "find", subject)
            try:
                _, payload = self._netlink.get(message)
            except KernelError as failure:
                if failure.errno == _NO_SUCH_TYPE:
                    raise Unsupported(f"sets of type {desired.kind}", detail=codec.ERRORS[_NO_SUCH_TYPE]) from failure
                raise
            self._revisions[kind] = codec.read_revision(payload)
        return self._revisions[kind]


def _message(command: int, body: bytes, operation: str, subject: object, flags: int = 0) -> Message:
    return Message(codec.NFNL_SUBSYS_IPSET << 8 | command, flags, body, operation, subject)


def _with_text(failure: KernelError) -> KernelError:
    """The failure with its text, if its number is one of ipset's own."""
    text = codec.ERRORS.get(failure.errno)
    return failure if text is None else KernelError(failure.operation, failure.subject, failure.errno, text)

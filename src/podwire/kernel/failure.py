"""From an errno to the exception that says what kind of refusal it is."""

import errno
import os

from podwire.errors import KernelError, KernelExists, KernelNotFound, Unsupported

_NOT_FOUND = frozenset((errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENXIO, errno.EADDRNOTAVAIL))
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOSYS))


def refusal(operation: str, subject: str, number: int, detail: str = "") -> KernelError:
    """The exception for ``number`` (an errno); the system's words join the detail."""
    words = os.strerror(number)
    said = f"{words}: {detail}" if detail else words
    if number in _NOT_FOUND:
        return KernelNotFound(operation, subject, number, said)
    if number == errno.EEXIST:
        return KernelExists(operation, subject, number, said)
    if number in _UNSUPPORTED:
        return Unsupported(subject, detail=f"{operation}: {said}")
    return KernelError(operation, subject, number, said)

"""Maps an errno to the fitting exception."""

import errno
import os

from podwire.errors import KernelError, KernelExists, KernelNotFound, Unsupported

_NOT_FOUND = frozenset((errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENXIO, errno.EADDRNOTAVAIL))
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOSYS))


def refusal(operation: str, subject: str, number: int, detail: str = "") -> KernelError:
    """The exception for ``number`` (an errno); its message is the system's error text and the detail."""
    error_text = os.strerror(number)
    message = f"{error_text}: {detail}" if detail else error_text
    if number in _NOT_FOUND:
        return KernelNotFound(operation, subject, number, message)
    if number == errno.EEXIST:
        return KernelExists(operation, subject, number, message)
    if number in _UNSUPPORTED:
        return Unsupported(subject, detail=f"{operation}: {message}")
    return KernelError(operation, subject, number, message)

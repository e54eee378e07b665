"""The exception tree.

::

    PodwireError
    ├── ConfigError            the user's input is wrong: source, field path, what was expected (exit 2)
    │   └── ConfigErrors       several of these at once
    ├── KernelError            the kernel refused: operation, object text, errno, extended ack
    │   ├── KernelNotFound     the object is not there (ENOENT, ESRCH, ENODEV, EADDRNOTAVAIL)
    │   ├── KernelExists       the object is there already (EEXIST)
    │   └── Unsupported        a kernel feature is missing: feature name and minimum kernel
    ├── ApiError               the Kubernetes API answered with a Status of failure
    │   ├── NotFound           404
    │   ├── AlreadyExists      409, reason AlreadyExists
    │   ├── Conflict           409, any other reason
    │   ├── Gone               410: the resourceVersion is too old, list again
    │   └── Invalid            422
    ├── ApiUnreachable         no answer from the API: refused, reset, timed out
    ├── Disconnected           an HTTP connection ended, or broke, before the whole answer was there
    ├── ProtocolError          a peer, or we ourselves, broke a protocol
    ├── CniError               a CNI failure with its numeric code
    ├── LoadBalancerError      an address of a load balancer cannot be allocated or released now
    ├── CloudError             a cloud refused a change or a question: its code
    │   └── CloudUnavailable   the cloud cannot be asked now: no answer, throttled, no credentials
    └── ClusterError           a local cluster cannot be made or found (exit 1)

Exceptions of libraries and of the operating system do not leave ``kernel`` and ``kube``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal


class PodwireError(Exception):
    """The root of all exceptions that podwire raises deliberately."""


class ConfigError(PodwireError):
    """A document, argument or object of the user is wrong.

    ``source`` names the document (file, ``namespace/name``, option), ``path`` the field in it (``spec.ports[0].port``;
    empty for the whole document).
    """

    def __init__(self, source: str, path: str, problem: str) -> None:
        self.source = source
        self.path = path
        self.problem = problem
        where = f"{source}: {path}" if path else source
        super().__init__(f"{where}: {problem}")


class ConfigErrors(ConfigError):
    """Several configuration errors, one line each; ``failures`` has at least one."""

    def __init__(self, failures: Sequence[ConfigError]) -> None:
        self.failures = tuple(failures)
        super().__init__(failures[0].source, failures[0].path, failures[0].problem)

    def __str__(self) -> str:
        return "\n".join(map(str, self.failures))


class KernelError(PodwireError):
    """The kernel refused ``operation`` on ``subject`` (its text form) with ``errno``."""

    def __init__(self, operation: str, subject: str, errno: int, detail: str = "") -> None:
        self.operation = operation
        self.subject = subject
        self.errno = errno
        self.detail = detail
        tail = f" ({detail})" if detail else ""
        super().__init__(f"{operation} {subject}: errno {errno}{tail}")


class KernelNotFound(KernelError):
    """The object is not in the kernel."""


class KernelExists(KernelError):
    """The object exists in the kernel."""


class Unsupported(KernelError):
    """The running kernel lacks ``feature``; ``minimum`` is the first version that has it."""

    def __init__(self, feature: str, minimum: str = "", detail: str = "") -> None:
        self.feature = feature
        self.minimum = minimum
        super().__init__("feature", feature, 95, detail or "the running kernel does not have it")


class ApiError(PodwireError):
    """A ``v1.Status`` of failure from the API: HTTP code, machine-readable reason, details."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        super().__init__(message)


class NotFound(ApiError):
    """404."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists."""


class Conflict(ApiError):
    """409 with any other reason: the object changed meanwhile, or another manager owns the field."""


class Gone(ApiError):
    """410: the resourceVersion (or continue token) is too old."""


class Invalid(ApiError):
    """422: validation failed; ``details["causes"]`` lists the fields."""


class Disconnected(PodwireError):
    """An HTTP connection ended before the answer was complete."""


class ApiUnreachable(PodwireError):
    """The API did not answer."""


class ProtocolError(PodwireError):
    """A protocol was broken by the ``remote`` peer or by the ``local`` side."""

    def __init__(self, side: Literal["local", "remote"], problem: str) -> None:
        self.side = side
        self.problem = problem
        super().__init__(f"{side}: {problem}")


class CniError(PodwireError):
    """A CNI result of failure: code of the CNI specification, short message, details."""

    def __init__(self, code: int, message: str, details: str = "") -> None:
        self.code = code
        self.message = message
        self.details = details
        super().__init__(f"CNI error {code}: {message}" + (f": {details}" if details else ""))


class LoadBalancerError(PodwireError):
    """A load balancer cannot allocate or release an address now; the controller tries again."""


class CloudError(PodwireError):
    """A cloud refused ``operation`` with its own ``code``."""

    def __init__(self, operation: str, code: str, problem: str) -> None:
        self.operation = operation
        self.code = code
        super().__init__(f"{operation}: {code}: {problem}" if code else f"{operation}: {problem}")


class CloudUnavailable(CloudError):
    """The cloud cannot be asked now, whatever the question is; the last state stays in force."""


class ClusterError(PodwireError):
    """A local cluster cannot be made, found or reached."""

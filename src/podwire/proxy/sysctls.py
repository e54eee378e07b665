"""Kernel parameters of connection tracking that a node with Services needs (kube-proxy's names and defaults).

By default, the kernel forgets idle connections after five days and half-closed connections after a minute. Five days
fill the table with dead connections, and a minute cuts answers that are still being sent, so both are set. The size of
the table is only increased, because another program may need a larger size. The size belongs to the machine, not to a
network namespace: when this process may not set it (a node of a local cluster), it stays.
"""

from collections.abc import Iterable

import msgspec

from podwire.errors import KernelError
from podwire.kernel import sysctl
from podwire.state.route import Sysctl

MAX = "net/netfilter/nf_conntrack_max"
BUCKETS = "net/netfilter/nf_conntrack_buckets"
_CEILING = 1048576
_GROWING = frozenset((MAX, BUCKETS))


class ConntrackSettings(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The table's size: ``max_per_core`` (0: leave it) times the processors, at least ``min``, at most 1,048,576.

    Times are in seconds; 0 leaves the kernel's. ``tcp_be_liberal`` accepts packets outside the window instead of
    calling them invalid.
    """

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: int = 86400
    tcp_close_wait_timeout: int = 3600
    tcp_be_liberal: bool = False
    udp_timeout: int = 0
    udp_stream_timeout: int = 0


def plan(settings: ConntrackSettings, processors: int) -> tuple[Sysctl, ...]:
    """The parameters to set; parameters of size are lower limits."""
    parameters: list[Sysctl] = []
    if settings.max_per_core:
        size = min(_CEILING, max(settings.min, settings.max_per_core * processors))
        parameters += [Sysctl(MAX, str(size)), Sysctl(BUCKETS, str(size // 4))]
    values = {
        "tcp_timeout_established": settings.tcp_established_timeout,
        "tcp_timeout_close_wait": settings.tcp_close_wait_timeout,
        "tcp_be_liberal": int(settings.tcp_be_liberal),
        "udp_timeout": settings.udp_timeout,
        "udp_timeout_stream": settings.udp_stream_timeout,
    }
    parameters += [Sysctl(f"net/netfilter/nf_conntrack_{name}", str(value)) for name, value in values.items() if value]
    return tuple(parameters)


def apply(parameters: Iterable[Sysctl], netns: str | None = None) -> tuple[str, ...]:
    """Sets parameters that differ; returns the problems, one text for each parameter that could not be set."""
    problems: list[str] = []
    for parameter in parameters:
        try:
            current = sysctl.read(parameter.path, netns)
            enough = parameter.path in _GROWING and int(current) >= int(parameter.value)
            if current != parameter.value and not enough:
                sysctl.write(parameter.path, parameter.value, netns)
        except KernelError as problem:
            problems.append(str(problem))
    return tuple(problems)

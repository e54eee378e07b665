"""What containers, pods and a node use: the kubelet's report, and the rate of CPU time between two samples. Pure.

A rate needs two samples. The first sample of a container is its start, when it had used no CPU time; later ones are
taken at each interval. A rate is counted from the newest sample that is at least two thirds of an interval old, so at
an interval of 15 s a new container has a rate after 10 s, as with metrics-server. A sample that is older than four
intervals is not used: a rate over hours would hide what happens now.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

_LEAST_SHARE = 2 / 3
_MOST_INTERVALS = 4


class CpuSample(NamedTuple):
    """CPU time used until an instant."""

    at_s: float
    """Seconds since 1970."""
    cpu_us: int


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of a container or a node at an instant."""

    at_s: float
    """Seconds since 1970."""
    since_s: float
    """When it was started, in seconds since 1970."""
    cpu_us: int
    """CPU time since the start."""
    memory_bytes: int
    """Working set."""
    window_s: float = 0.0
    """The time over which ``cpu_nanocores`` is counted; 0: there is no rate yet."""
    cpu_nanocores: int = 0


class ContainerUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of one running container, and its limits; None: no limit."""

    name: str
    id: str
    image: str
    usage: Usage
    cpu_limit_us: int | None = None
    """CPU time in each period of 100 ms."""
    memory_limit_bytes: int | None = None


class PodUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of a pod with at least one running container that was measured."""

    namespace: str
    name: str
    uid: str
    since_s: float
    containers: tuple[ContainerUsage, ...]


class UsageReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of a node and of each of its pods; ``node``, with kubelet and agent, is None without cgroups."""

    name: str
    node: Usage | None = None
    pods: tuple[PodUsage, ...] = ()


def rate(samples: Sequence[CpuSample], now: CpuSample, interval_s: float) -> tuple[float, int]:
    """Window in seconds and CPU in nanocores at ``now``; zeros while no sample is old enough.

    ``samples`` are in order of time.
    """
    least_s, most_s = interval_s * _LEAST_SHARE, interval_s * _MOST_INTERVALS
    base = next((sample for sample in reversed(samples) if least_s <= now.at_s - sample.at_s <= most_s), None)
    if base is None:
        return 0.0, 0
    window_s = now.at_s - base.at_s
    return window_s, round(max(0, now.cpu_us - base.cpu_us) * 1000 / window_s)


def total(pod: PodUsage) -> Usage:
    """The sum of a pod's containers, at the time of the earliest."""
    usages = [container.usage for container in pod.containers]
    earliest = min(usages, key=lambda usage: usage.at_s)
    return msgspec.structs.replace(
        earliest, since_s=pod.since_s, cpu_us=sum(usage.cpu_us for usage in usages),
        memory_bytes=sum(usage.memory_bytes for usage in usages),
        cpu_nanocores=sum(usage.cpu_nanocores for usage in usages),
    )  # fmt: skip

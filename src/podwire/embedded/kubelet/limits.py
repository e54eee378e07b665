"""The limits that a container's cgroup gets, from ``resources.limits``.

Source: kubernetes pkg/kubelet/cm (helpers_linux.go): MilliCPUToQuota, minQuotaPeriod.
"""

from podwire.kernel.cgroup import PERIOD_US
from podwire.model.pod import Container
from podwire.model.quantity import parse_milli

_LEAST_QUOTA_US = 1000


def cpu_quota_us(container: Container) -> int | None:
    """CPU time in each period of 100 ms; None without a limit."""
    limit = container.resources.limits.get("cpu")
    milli = parse_milli(limit) if limit else 0
    return max(_LEAST_QUOTA_US, milli * PERIOD_US // 1000) if milli else None


def memory_limit_bytes(container: Container) -> int | None:
    """Bytes of memory; None without a limit."""
    limit = container.resources.limits.get("memory")
    number = parse_milli(limit) // 1000 if limit else 0
    return number or None

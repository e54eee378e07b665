"""The state of a probe, computed from its results. Pure.

Readiness and startup probes begin as failed, a liveness probe begins as passed. The state changes after
``successThreshold`` successes or ``failureThreshold`` failures in a row. A startup probe that has passed is not sent
again; readiness and liveness probes start then.

In one point this differs from Kubernetes' kubelet, so that pods are ready sooner: until a readiness or startup probe
has succeeded once, it is sent again after 0.1 s, with delays that double up to the probe's period, and these early
failures do not count. Source: kubernetes pkg/kubelet/prober.
"""

from enum import Enum

import msgspec

from podwire.model.pod import Probe

_EARLY_S = 0.1


class ProbeKind(Enum):
    """The purpose of a probe."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


class ProbeState(msgspec.Struct):
    """The state of one probe in one run of a container."""

    kind: ProbeKind
    probe: Probe
    good: bool
    successes: int = 0
    failures: int = 0
    early_s: float = _EARLY_S
    """Seconds until the next probe while the probe has never succeeded."""
    ever: bool = False
    """Whether the probe has succeeded once."""

    @classmethod
    def begin(cls, kind: ProbeKind, probe: Probe) -> "ProbeState":
        """The state before the first result."""
        return cls(kind, probe, good=kind is ProbeKind.LIVENESS)

    def first_delay_s(self) -> float:
        """Seconds from the container's start to the first probe."""
        return float(self.probe.initial_delay_seconds)

    def record(self, success: bool) -> float:  # noqa: FBT001
        """Takes one result, updates ``good`` and returns the seconds until the next probe."""
        period = float(max(1, self.probe.period_seconds))
        if success:
            self.ever = True
            self.successes, self.failures = self.successes + 1, 0
            if self.successes >= max(1, self.probe.success_threshold):
                self.good = True
            return min(period, _EARLY_S) if not self.good else period
        self.successes = 0
        if not self.ever and self.kind is not ProbeKind.LIVENESS and self.early_s < period:
            delay, self.early_s = self.early_s, self.early_s * 2
            return delay
        self.failures += 1
        if self.failures >= max(1, self.probe.failure_threshold):
            self.good = False
        return period

    @property
    def failed(self) -> bool:
        """Whether the container must be stopped: the liveness or startup probe has reached its failure threshold."""
        over = self.failures >= max(1, self.probe.failure_threshold)
        return over and self.kind is not ProbeKind.READINESS and not self.good

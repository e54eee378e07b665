"""The time of the change that caused a write of slices: the annotation ``last-change-trigger-time``.

Proxies subtract it from the time at which they have programmed the slice, so an old time on a new write would look like
a slow network. For a new Service it is the Service's creation; after that it is the earliest change of a pod's
readiness since the last write. A write without such a change (a deleted pod) carries no time. Changes before the start
of this process have no time. Cost: a short text per endpoint.

Source: ``k8s.io/endpointslice/util/trigger_time_tracker.go``.
"""

from collections.abc import Iterable

from podwire.model.pod import Pod
from podwire.model.service import Service


class TriggerTimes:
    """The readiness times that the slices of each Service show, by its key."""

    def __init__(self) -> None:
        self._recorded: dict[str, dict[str, str]] = {}

    def since(self, key: str, service: Service, pods: Iterable[Pod], *, has_slices: bool) -> str:
        """The time of the first change since the last :meth:`record`; empty when there is none."""
        recorded = self._recorded.get(key)
        if recorded is None:
            return "" if has_slices else service.metadata.creation_timestamp or ""
        return min((time for uid, time in _times(pods).items() if time > recorded.get(uid, "")), default="")

    def record(self, key: str, pods: Iterable[Pod]) -> None:
        """Records that the slices show these pods."""
        self._recorded[key] = _times(pods)

    def forget(self, key: str) -> None:
        """Drops a deleted Service."""
        self._recorded.pop(key, None)


def _times(pods: Iterable[Pod]) -> dict[str, str]:
    """The time of the last readiness change of each pod, by its uid; RFC 3339 in UTC, so texts compare as times."""
    times = {
        pod.metadata.uid: condition.last_transition_time
        for pod in pods
        for condition in pod.status.conditions
        if condition.type == "Ready"
    }
    return {uid: time for uid, time in times.items() if time}

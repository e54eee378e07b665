"""When the change happened that a write of slices is about: the annotation ``last-change-trigger-time``.

Proxies subtract it from the time at which they have programmed the slice, so an old time on a new write would look
like a slow network. A new Service triggers by its creation; after that, pods by changes of their readiness: the
earliest one since the last write counts, and a write without one (a pod that went) carries no time. What was there
before this process is known without a time. Cost: a short text for each endpoint.
Source: ``k8s.io/endpointslice/util/trigger_time_tracker.go``.
"""

from collections.abc import Iterable

from podwire.model.pod import Pod
from podwire.model.service import Service


class TriggerTimes:
    """What was told of each Service so far, by its key."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, str]] = {}

    def since(self, key: str, service: Service, pods: Iterable[Pod], *, has_slices: bool) -> str:
        """The time of the change since the last :meth:`tell`; empty when there is none."""
        told = self._told.get(key)
        if told is None:
            return "" if has_slices else service.metadata.creation_timestamp or ""
        return min((time for uid, time in _times(pods).items() if time > told.get(uid, "")), default="")

    def tell(self, key: str, pods: Iterable[Pod]) -> None:
        """Notes that the slices show these pods."""
        self._told[key] = _times(pods)

    def forget(self, key: str) -> None:
        """The Service is gone."""
        self._told.pop(key, None)


def _times(pods: Iterable[Pod]) -> dict[str, str]:
    """When the readiness of each pod changed last, by its uid; RFC 3339 in UTC, so texts compare as times."""
    found = {
        pod.metadata.uid: condition.last_transition_time
        for pod in pods
        for condition in pod.status.conditions
        if condition.type == "Ready"
    }
    return {uid: time for uid, time in found.items() if time}

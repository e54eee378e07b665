"""Counts the resource requests and host ports of the node's pods, and decides whether another pod fits.

The scheduler counts the same way. So a pod that does not fit was assigned by hand, or by a scheduler that did not yet
know another pod.

Source: kubernetes pkg/kubelet/lifecycle/predicate.go; pkg/kubelet/allocation (canResizePod).
"""

from collections.abc import Mapping
from typing import NamedTuple

from podwire.model.hostports import HostPort, overlap
from podwire.model.requests import amounts

_PODS = "pods"
_MILLI = "cpu"


class Shortage(NamedTuple):
    """A resource that the node does not have enough of; thousandths of its unit."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        """``OutOfcpu``."""
        return f"OutOf{self.resource}"

    def __str__(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self._shown(self.requested)}, "
            f"used: {self._shown(self.used)}, capacity: {self._shown(self.capacity)}"
        )

    @property
    def whole(self) -> str:
        """The message for a request that no empty node of this size could meet."""
        return (
            f"Node didn't have enough capacity: {self.resource}, requested: {self._shown(self.requested)}, "
            f"capacity: {self._shown(self.capacity)}"
        )

    def _shown(self, milli: int) -> int:
        """CPU in thousandths, all else in units, as Kubernetes shows them."""
        return milli if self.resource == _MILLI else milli // 1000


class NodeLedger:
    """Requests and host ports of the node's pods by uid; a pod counts until its containers have ended."""

    def __init__(self, allocatable: Mapping[str, str]) -> None:
        self._allocatable = amounts(allocatable)
        self._requests: dict[str, Mapping[str, int]] = {}
        self._ports: dict[str, tuple[HostPort, ...]] = {}

    def count(self, uid: str, requests: Mapping[str, int]) -> None:
        """Counts a pod, or changes its requests."""
        self._requests[uid] = requests

    def take_ports(self, uid: str, ports: tuple[HostPort, ...]) -> bool:
        """Gives ports of the node to a pod; False, and no change, when another pod has one of them."""
        if any(overlap(ports, held) for other, held in self._ports.items() if other != uid):
            return False
        if ports:
            self._ports[uid] = ports
        return True

    def drop(self, uid: str) -> None:
        """Stops counting a pod."""
        self._requests.pop(uid, None)
        self._ports.pop(uid, None)

    def shortage(self, uid: str, requests: Mapping[str, int]) -> Shortage | None:
        """The first resource of which the other pods leave too little; None when the pod fits."""
        other_requests = [held for other, held in self._requests.items() if other != uid]
        for resource, requested, capacity in self._compared(requests):
            counted = sum(held.get(resource, 0) for held in other_requests)
            used = 1000 * len(other_requests) if resource == _PODS else counted
            if requested > capacity - used:
                return Shortage(resource, requested, used, capacity)
        return None

    def excess(self, requests: Mapping[str, int]) -> Shortage | None:
        """The first resource of which the pod requests more than the node has; None when the node could hold it."""
        for resource, requested, capacity in self._compared(requests):
            if requested > capacity:
                return Shortage(resource, requested, 0, capacity)
        return None

    def _compared(self, requests: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """Resource, request and capacity; resources that the node does not name are left out."""
        demanded = {_PODS: 1000, **requests}
        return [(name, demanded[name], have) for name, have in self._allocatable.items() if demanded.get(name)]

"""What a pod requests of a node: the sums that scheduler and kubelet count with."""

from collections import Counter
from collections.abc import Mapping

from podwire.errors import ConfigError
from podwire.model.pod import Container, Pod
from podwire.model.quantity import parse_milli


def amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Thousandths by resource; quantities that do not parse are left out."""
    amounts_by_resource: dict[str, int] = {}
    for name, quantity in quantities.items():
        try:
            amounts_by_resource[name] = parse_milli(quantity)
        except ConfigError:
            continue
    return amounts_by_resource


def pod_requests(pod: Pod) -> dict[str, int]:
    """The larger of two sums by resource: containers and sidecars, or the largest init container with its sidecars.

    The overhead of the pod is added. In thousandths of each resource's unit.
    """
    total: Counter[str] = Counter()
    for container in pod.spec.containers:
        total.update(_container_requests(container))
    peak: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in pod.spec.init_containers:
        wants = _container_requests(container)
        if container.restart_policy == "Always":
            sidecars.update(wants)
            total.update(wants)
            peak |= sidecars
        else:
            peak |= Counter(wants) + sidecars
    return dict((total | peak) + Counter(amounts(pod.spec.overhead)))


def _container_requests(container: Container) -> dict[str, int]:
    return amounts({**container.resources.limits, **container.resources.requests})

"""The ports of a node that pods take, as scheduler and kubelet compare them."""

from collections.abc import Iterable

from podwire.model.pod import Pod

HostPort = tuple[str, str, int]
"""Host address (``0.0.0.0`` for all), protocol, port."""

_ANY = "0.0.0.0"  # noqa: S104
CONFLICT = "node(s) didn't have free ports for the requested pod ports"


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """The ports of the node that the containers and sidecars of a pod take."""
    spec = pod.spec
    sidecars = [container for container in spec.init_containers if container.restart_policy == "Always"]
    ports: list[HostPort] = []
    for container in (*sidecars, *spec.containers):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number:
                ports.append((port.host_ip or _ANY, port.protocol, number))
    return tuple(ports)


def overlap(ports: Iterable[HostPort], taken_ports: Iterable[HostPort]) -> bool:
    """Whether two sets of ports have a port and protocol in common at one address."""
    held = list(taken_ports)
    return any(
        (protocol, number) == (other_protocol, other_number) and (_ANY in (address, other) or address == other)
        for address, protocol, number in ports
        for other, other_protocol, other_number in held
    )

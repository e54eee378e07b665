"""Converts the targets of a test to connections to try: ``db:5432``, ``svc/shop/db:http``, ``10.0.0.1:80/UDP`` (pure).

=============================  =====================================================================================
``db:5432``, ``db.shop:5432``  a DNS name, as a program in the pod would look it up, of a Service
``svc/shop/db:5432``           the same; from outside of the cluster, the Service's node port on every node
``shop/web:80``                pods: a name, the name of their Deployment, or labels (``shop/app=web:80``)
``node/node-1:30080``          a node's address
``10.0.0.1:80``, ``[::1]:80``  an address; outside of the cluster when no pod, node or Service has it
``external:443``               a host outside of the cluster
=============================  =====================================================================================

The protocol follows the port (``53/UDP``, ``9/SCTP``); the default is TCP. A port of a Service may be a name. For a
headless Service this is the port of its endpoints, because no proxy translates port numbers. When a Service or a pod
has only one port, the port may be omitted.
"""

from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from podwire.errors import ConfigError
from podwire.local.probe.plan import (
    PROTOCOLS,
    Attempt,
    Expectations,
    PacketSource,
    ProbeInputs,
    ProbePort,
    declared_ports,
    named_attempts,
    node_port_attempts,
    pods_named,
    service_named,
    to_pod,
)
from podwire.local.probe.verdicts import Expectation
from podwire.model.meta import key_of
from podwire.model.service import Service
from podwire.proxy.resolve import service_of

EXTERNAL, EXTERNAL6 = "203.0.113.1", "2001:db8::1"
"""The default addresses of the host outside: documentation addresses (RFC 5737, RFC 3849)."""
EXTERNAL_PORT = 443
SCTP = "SCTP"


class ReachTarget(msgspec.Struct, frozen=True):
    """The parts of a target."""

    word: str
    name: str
    port: str = ""
    """A number, a name, or empty."""
    protocol: str = "TCP"


def parse_target(text: str) -> ReachTarget:
    """Parses a target such as ``db:5432/TCP``.

    Raises: ConfigError when it is malformed.
    """
    rest, protocol = text.strip(), "TCP"
    head, slash, last = rest.rpartition("/")
    if slash and last.upper() in (*PROTOCOLS, SCTP):
        rest, protocol = head, last.upper()
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") > 1:
        name, port = rest, ""
    else:
        name, _, port = rest.partition(":")
    if not name or (port.isdigit() and not 0 < int(port) < 65536):
        raise ConfigError("reaches", "", f"{text!r}: expected a target and a port, such as db:5432 or 10.0.0.1:53/UDP")
    return ReachTarget(word=text, name=name, port=port, protocol=protocol)


def attempts_of(expecting: Expectations, source: PacketSource, text: str) -> tuple[Attempt, ...]:
    """The connections from a source that a target stands for.

    Raises: ConfigError for a word that names nothing.
    """
    attempts = _attempts(expecting, source, parse_target(text))
    for attempt in attempts:
        if source.namespace and not attempt.named and (":" in attempt.address) != (":" in source.address):
            problem = f"{source.address} and {attempt.address} have different IP families ({text})"
            raise ConfigError("reaches", "", problem)
    return attempts


def _attempts(expecting: Expectations, source: PacketSource, target: ReachTarget) -> tuple[Attempt, ...]:
    if target.name == "external":
        address = external(expecting.inputs)
        return _to_address(expecting, source, target, address, target.port or str(EXTERNAL_PORT))
    if _is_address(target.name):
        return _to_address(expecting, source, target, target.name, target.port)
    kind, _, name = target.name.partition("/")
    if kind == "node":
        return _to_address(expecting, source, target, _node_address(expecting.inputs, target, name), target.port)
    if kind in ("svc", "service") and name:
        return _to_service(expecting, source, target, service_named(expecting.inputs, target.name))
    if name:
        return _to_pods(expecting, source, target)
    return _to_service(expecting, source, target, _looked_up(expecting.inputs, source, target))


def external(inputs: ProbeInputs) -> str:
    """The default address of the host outside, in the first IP family of the cluster."""
    return EXTERNAL6 if inputs.node_addresses and ":" in inputs.node_addresses[0][1] else EXTERNAL


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _to_address(
    expecting: Expectations, source: PacketSource, target: ReachTarget, address: str, number: str
) -> tuple[Attempt, ...]:
    if not number.isdigit():
        raise ConfigError("reaches", "", f"{target.word!r}: expected a port number")
    port = ProbePort(number=int(number), protocol=target.protocol)
    attempt = Attempt(source=source, target=target.name, address=address, port=port)
    return (expecting.with_expectation(attempt, _verdict(expecting, source, attempt)),)


def _verdict(expecting: Expectations, source: PacketSource, attempt: Attempt) -> Expectation | None:
    port, source_party, inputs = attempt.port, expecting.party(source), expecting.inputs
    for service in inputs.services:
        if attempt.address in _addresses(service):
            return expecting.verdicts.service(source_party, service, port.number, port.protocol)
        node = next((node for node, address in inputs.node_addresses if address == attempt.address), "")
        if node and source_party.pod is None and _has_node_port(service, port):
            return expecting.verdicts.node_port(node, source_party, service, port.number, port.protocol)
    return expecting.verdicts.between(
        source_party, expecting.verdicts.party(attempt.address), port.number, port.protocol
    )


def _has_node_port(service: Service, port: ProbePort) -> bool:
    return any((p.node_port, p.protocol) == (port.number, port.protocol) for p in service.spec.ports)


def _addresses(service: Service) -> tuple[str, ...]:
    return tuple(ip for ip in (service.spec.cluster_ip, *service.spec.cluster_ips) if ip not in ("", "None"))


def _node_address(inputs: ProbeInputs, target: ReachTarget, name: str) -> str:
    for node, address in inputs.node_addresses:
        if node == name:
            return address
    known = ", ".join(node for node, _ in inputs.node_addresses)
    raise ConfigError("reaches", "", f"{target.word!r}: there is no node {name!r}; expected one of {known}")


def _to_pods(expecting: Expectations, source: PacketSource, target: ReachTarget) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    for pod in pods_named(expecting.inputs, target.name, "reaches"):
        if pod.metadata.uid == source.pod_uid:
            continue
        declared = tuple(dict.fromkeys(declared_ports(pod)))
        number = _number(target, declared, {p.name: p.container_port for c in pod.spec.containers for p in c.ports})
        port = ProbePort(number=number, protocol=target.protocol)
        attempt = to_pod(expecting, source, pod, (port,))[0]
        if not attempt.because:  # policies also decide about ports without a listener
            ends = expecting.party(source), expecting.verdicts.pod(pod)
            verdict = expecting.verdicts.between(*ends, port.number, port.protocol)
            attempt = expecting.with_expectation(msgspec.structs.replace(attempt, because=verdict.because), verdict)
        attempts.append(attempt)
    return tuple(attempts)


def _number(target: ReachTarget, declared: Sequence[ProbePort], named: dict[str, int]) -> int:
    """The port's number.

    Raises: ConfigError.
    """
    if target.port.isdigit():
        return int(target.port)
    if target.port in named and target.port:
        return named[target.port]
    fitting = [port.number for port in declared if port.protocol == target.protocol]
    if not target.port and len(set(fitting)) == 1:
        return fitting[0]
    offered = ", ".join(dict.fromkeys([*filter(None, named), *map(str, declared)])) or "none"
    problem = f"no port {target.port!r}" if target.port else "no port is named"
    raise ConfigError("reaches", "", f"{target.word!r}: {problem}; there are: {offered}")


def _to_service(
    expecting: Expectations, source: PacketSource, target: ReachTarget, service: Service
) -> tuple[Attempt, ...]:
    ports = [ProbePort(number=port.port, protocol=port.protocol) for port in service.spec.ports]
    named = {port.name: port.port for port in service.spec.ports} | _looked_up_ports(expecting.inputs, service)
    port = ProbePort(number=_number(target, ports, named), protocol=target.protocol)
    if source.node and not source.pod_uid and _addresses(service):  # a node's programs do not ask cluster DNS
        return _to_address(expecting, source, target, _addresses(service)[0], str(port.number))
    if source.pod_uid:
        attempts = named_attempts(expecting, source, service, (port,))
    else:
        attempts = node_port_attempts(expecting, service, (port,), source)
        if not attempts:
            raise ConfigError("reaches", "", f"{target.word!r}: only pods reach it, it has no node port for {port}")
    return tuple(attempts)


def _looked_up_ports(inputs: ProbeInputs, service: Service) -> dict[str, int]:
    """The port numbers of a headless Service's endpoints, by port name."""
    if not service.headless:
        return {}
    endpoint_slices = (
        endpoint_slice for endpoint_slice in inputs.slices if service_of(endpoint_slice) == key_of(service.metadata)
    )
    return {
        port.name: port.port
        for endpoint_slice in endpoint_slices
        for port in endpoint_slice.ports or ()
        if port.name and port.port
    }


def _looked_up(inputs: ProbeInputs, source: PacketSource, target: ReachTarget) -> Service:
    """The Service of a DNS name, with the search path of a pod.

    Raises: ConfigError.
    """
    name = target.name.rstrip(".").removesuffix(f".{inputs.domain}").removesuffix(".svc")
    own = next((pod.metadata.namespace for pod in inputs.pods if pod.metadata.uid == source.pod_uid), "default")
    service, _, namespace = name.partition(".")
    key = f"{namespace or own}/{service}"
    match = next((candidate for candidate in inputs.services if key_of(candidate.metadata) == key), None)
    if match is None:
        raise ConfigError(
            "reaches", "", f"{target.word!r}: there is no Service {key}; pods are named with their namespace, {key}"
        )
    return match

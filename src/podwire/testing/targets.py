"""From the words of a test to connections to try: ``db:5432``, ``svc/shop/db:http``, ``10.0.0.1:80/UDP`` (pure).

=============================  =====================================================================================
``db:5432``, ``db.shop:5432``  a DNS name, as a program in the pod would look it up, of a Service
``svc/shop/db:5432``           the same; from outside of the cluster, the Service's node port on every node
``shop/web:80``                pods: a name, the name of their Deployment, or labels (``shop/app=web:80``)
``node/node-1:30080``          a node's address
``10.0.0.1:80``, ``[::1]:80``  an address; one that is nobody's in the cluster answers outside of it
``external:443``               somebody outside
=============================  =====================================================================================

Behind the port stands the protocol, ``53/UDP``, ``9/SCTP``; without one it is TCP. A Service's port may be named: of a
headless one that is the endpoints' own, since nobody translates what is asked for by number. The only port of a Service
and the only one that a pod declares may be left out.
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
    Port,
    ProbeInputs,
    declared_ports,
    named_attempts,
    node_port_attempts,
    pods_named,
    service_named,
    to_pod,
)
from podwire.local.probe.verdicts import Verdict
from podwire.model.meta import key_of
from podwire.model.service import Service
from podwire.proxy.resolve import service_of

EXTERNAL, EXTERNAL6 = "203.0.113.1", "2001:db8::1"
"""Who is outside, unless an address is named: one that is for examples (RFC 5737, RFC 3849)."""
EXTERNAL_PORT = 443
SCTP = "SCTP"


class Target(msgspec.Struct, frozen=True):
    """A word taken apart."""

    word: str
    name: str
    port: str = ""
    """A number, a name, or empty."""
    protocol: str = "TCP"


def parse_target(word: str) -> Target:
    """A word taken apart.

    Raises: ConfigError.
    """
    rest, protocol = word.strip(), "TCP"
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
        raise ConfigError("reaches", "", f"{word!r}: expected a target and a port, such as db:5432 or 10.0.0.1:53/UDP")
    return Target(word=word, name=name, port=port, protocol=protocol)


def attempts_of(expecting: Expectations, place: PacketSource, word: str) -> tuple[Attempt, ...]:
    """The connections that a word means for who is at a place.

    Raises: ConfigError for a word that names nothing.
    """
    found = _attempts(expecting, place, parse_target(word))
    for attempt in found:
        if place.namespace and not attempt.named and (":" in attempt.address) != (":" in place.address):
            problem = f"{place.address} and {attempt.address} have different IP families ({word})"
            raise ConfigError("reaches", "", problem)
    return found


def _attempts(expecting: Expectations, place: PacketSource, target: Target) -> tuple[Attempt, ...]:
    if target.name == "external":
        address = external(expecting.inputs)
        return _to_address(expecting, place, target, address, target.port or str(EXTERNAL_PORT))
    if _is_address(target.name):
        return _to_address(expecting, place, target, target.name, target.port)
    kind, _, name = target.name.partition("/")
    if kind == "node":
        return _to_address(expecting, place, target, _node_address(expecting.inputs, target, name), target.port)
    if kind in ("svc", "service") and name:
        return _to_service(expecting, place, target, service_named(expecting.inputs, target.name))
    if name:
        return _to_pods(expecting, place, target)
    return _to_service(expecting, place, target, _looked_up(expecting.inputs, place, target))


def external(facts: ProbeInputs) -> str:
    """The address of who is outside, of the first family of the cluster."""
    return EXTERNAL6 if facts.node_addresses and ":" in facts.node_addresses[0][1] else EXTERNAL


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _to_address(
    expecting: Expectations, place: PacketSource, target: Target, address: str, number: str
) -> tuple[Attempt, ...]:
    if not number.isdigit():
        raise ConfigError("reaches", "", f"{target.word!r}: expected a port number")
    port = Port(number=int(number), protocol=target.protocol)
    attempt = Attempt(source=place, target=target.name, address=address, port=port)
    return (expecting.judged(attempt, _verdict(expecting, place, attempt)),)


def _verdict(expecting: Expectations, place: PacketSource, attempt: Attempt) -> Verdict | None:
    port, source, facts = attempt.port, expecting.party(place), expecting.inputs
    for service in facts.services:
        if attempt.address in _addresses(service):
            return expecting.verdicts.service(source, service, port.number, port.protocol)
        node = next((node for node, address in facts.node_addresses if address == attempt.address), "")
        if node and source.pod is None and _has_node_port(service, port):
            return expecting.verdicts.node_port(node, source, service, port.number, port.protocol)
    return expecting.verdicts.between(source, expecting.verdicts.party(attempt.address), port.number, port.protocol)


def _has_node_port(service: Service, port: Port) -> bool:
    return any((each.node_port, each.protocol) == (port.number, port.protocol) for each in service.spec.ports)


def _addresses(service: Service) -> tuple[str, ...]:
    return tuple(ip for ip in (service.spec.cluster_ip, *service.spec.cluster_ips) if ip not in ("", "None"))


def _node_address(facts: ProbeInputs, target: Target, name: str) -> str:
    for node, address in facts.node_addresses:
        if node == name:
            return address
    known = ", ".join(node for node, _ in facts.node_addresses)
    raise ConfigError("reaches", "", f"{target.word!r}: there is no node {name!r}; there are {known}")


def _to_pods(expecting: Expectations, place: PacketSource, target: Target) -> tuple[Attempt, ...]:
    found: list[Attempt] = []
    for pod in pods_named(expecting.inputs, target.name, "reaches"):
        if pod.metadata.uid == place.pod_uid:
            continue
        declared = tuple(dict.fromkeys(declared_ports(pod)))
        number = _number(target, declared, {p.name: p.container_port for c in pod.spec.containers for p in c.ports})
        port = Port(number=number, protocol=target.protocol)
        attempt = to_pod(expecting, place, pod, (port,))[0]
        if not attempt.because:  # policies speak also of ports where nobody listens
            ends = expecting.party(place), expecting.verdicts.pod(pod)
            verdict = expecting.verdicts.between(*ends, port.number, port.protocol)
            attempt = expecting.judged(msgspec.structs.replace(attempt, because=verdict.because), verdict)
        found.append(attempt)
    return tuple(found)


def _number(target: Target, declared: Sequence[Port], named: dict[str, int]) -> int:
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


def _to_service(expecting: Expectations, place: PacketSource, target: Target, service: Service) -> tuple[Attempt, ...]:
    ports = [Port(number=port.port, protocol=port.protocol) for port in service.spec.ports]
    named = {port.name: port.port for port in service.spec.ports} | _looked_up_ports(expecting.inputs, service)
    port = Port(number=_number(target, ports, named), protocol=target.protocol)
    if place.node and not place.pod_uid and _addresses(service):  # a node's programs do not ask cluster DNS
        return _to_address(expecting, place, target, _addresses(service)[0], str(port.number))
    if place.pod_uid:
        found = named_attempts(expecting, place, service, (port,))
    else:
        found = node_port_attempts(expecting, service, (port,), place)
        if not found:
            raise ConfigError("reaches", "", f"{target.word!r}: only pods reach it, it has no node port for {port}")
    return tuple(found)


def _looked_up_ports(facts: ProbeInputs, service: Service) -> dict[str, int]:
    """The ports of a headless Service's endpoints by their names, as who looks them up gets them."""
    if not service.headless:
        return {}
    pieces = (piece for piece in facts.slices if service_of(piece) == key_of(service.metadata))
    return {port.name: port.port for piece in pieces for port in piece.ports or () if port.name and port.port}


def _looked_up(facts: ProbeInputs, place: PacketSource, target: Target) -> Service:
    """The Service of a DNS name, with the search path of a pod.

    Raises: ConfigError.
    """
    name = target.name.rstrip(".").removesuffix(f".{facts.domain}").removesuffix(".svc")
    own = next((pod.metadata.namespace for pod in facts.pods if pod.metadata.uid == place.pod_uid), "default")
    service, _, namespace = name.partition(".")
    key = f"{namespace or own}/{service}"
    found = next((one for one in facts.services if key_of(one.metadata) == key), None)
    if found is None:
        raise ConfigError(
            "reaches", "", f"{target.word!r}: there is no Service {key}; pods are named with their namespace, {key}"
        )
    return found

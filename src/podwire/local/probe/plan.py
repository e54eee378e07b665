"""What to probe: from words on the command line and cluster facts to a list of attempts; pure.

Words name sources and targets:

========================  ==========================================================================
``all``                   every pod that runs (outside kube-system, unless nothing else runs)
``host``                  the machine itself; as a target its fabric address, where the API server listens
``shop/web-0``            a pod; without a namespace, in ``default``; a name that is no pod means the
                          pods whose names start with it and a dash (those of a Deployment)
``shop/app=web,tier!=x``  a label selector in a namespace; ``*/app=web`` in all
``svc/shop/web``          a Service, asked by its DNS name; from the host, by its NodePorts
========================  ==========================================================================

What is expected of each is what the objects promise: a pod answers on the ports that it declares while it is Ready, a
Service where an endpoint may be chosen, and policies have their say in both, and in whether a name can be looked up.

Cost: sources x targets x ports attempts, a socket each.
"""

from collections.abc import Iterable

import msgspec

from podwire.cluster.world import Party, World
from podwire.errors import ConfigError
from podwire.local.probe.verdicts import Verdict, Verdicts
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.model.selector import parse_selector
from podwire.model.service import EndpointSlice, Service
from podwire.policy.evaluate import Connection, EvaluationOptions
from podwire.why.policies.verdict import Lines, no_line

HOST = "host"
SYSTEM_NAMESPACE = "kube-system"
PROTOCOLS = ("TCP", "UDP")
DNS_SERVICE = "kube-system/kube-dns"
DNS_PORT = 53


class Place(msgspec.Struct, frozen=True):
    """Where packets leave from: the host (empty name of a node), a pod, a node, or somewhere outside."""

    name: str
    """``host``, ``namespace/pod``, or what a reader calls it."""
    pod_uid: str = ""
    node: str = ""
    host_network: bool = False
    namespace: str = ""
    """The namespace of the fabric that it is in, where it is neither of those."""
    address: str = ""
    """Its address then, and that of a node."""


class Port(msgspec.Struct, frozen=True, order=True):
    """A port to try; protocol is TCP or UDP."""

    number: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"{self.number}/{self.protocol}"


class Attempt(msgspec.Struct, frozen=True):
    """One connection to try."""

    source: Place
    target: str
    """``namespace/pod``, ``svc/namespace/name``, ``node:port of svc`` or ``host``."""
    address: str
    """An IP address, or the DNS name that the source must look up."""
    port: Port
    named: bool = False
    """Whether ``address`` is a DNS name."""
    expected: bool = True
    either: bool = False
    """Whether both are well: policies let some endpoints of the Service through and not others."""
    because: str = ""
    """What policies have against it, in one line."""


class Facts(msgspec.Struct, frozen=True):
    """What the plan reads of the cluster; ``node_addresses`` is (node, address) in node order."""

    pods: tuple[Pod, ...]
    services: tuple[Service, ...]
    node_addresses: tuple[tuple[str, str], ...] = ()
    domain: str = "cluster.local"
    slices: tuple[EndpointSlice, ...] = ()
    world: World = World()
    """What policies are about."""
    rules: EvaluationOptions = EvaluationOptions()
    host_address: str = ""
    """This machine on the fabric."""
    host_port: int = 0
    """The TCP port that always answers there."""


def parse_port(word: str) -> Port:
    """``80/TCP`` or ``80`` (TCP).

    Raises: ConfigError.
    """
    number, _, protocol = word.partition("/")
    protocol = protocol.upper() or "TCP"
    if not number.isdigit() or not 0 < int(number) < 65536 or protocol not in PROTOCOLS:
        raise ConfigError("--port", "", f"{word!r}: expected a number from 1 to 65535, /TCP or /UDP behind it")
    return Port(number=int(number), protocol=protocol)


def plan(
    facts: Facts, sources: tuple[str, ...], targets: tuple[str, ...], ports: tuple[Port, ...]
) -> tuple[Attempt, ...]:
    """The attempts for the given words, source by source, target by target; a pod is not tried from itself.

    Raises: ConfigError for a word that names nothing.
    """
    places = [place for word in sources for place in source_places(facts, word)]
    expecting = Expecting(facts)
    attempts: list[Attempt] = []
    for place in dict.fromkeys(places):
        for word in targets:
            attempts.extend(_towards(expecting, place, word, ports))
    return tuple(dict.fromkeys(attempts))


def source_places(facts: Facts, word: str) -> tuple[Place, ...]:
    """The places a word names.

    Raises: ConfigError.
    """
    if word == HOST:
        return (Place(name=HOST),)
    if word.startswith(("svc/", "service/")):
        raise ConfigError("--from", "", f"{word!r}: packets leave from pods or from the host, not from a Service")
    return tuple(place_of(pod) for pod in pods_named(facts, word, "--from"))


def place_of(pod: Pod) -> Place:
    """A pod as a source."""
    return Place(
        name=f"{pod.metadata.namespace}/{pod.metadata.name}",
        pod_uid=pod.metadata.uid,
        node=pod.spec.node_name,
        host_network=pod.spec.host_network,
    )


def running(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods that have an address and have not ended, by namespace and name."""
    alive = [p for p in pods if p.addresses and not p.finished and not p.metadata.deletion_timestamp]
    return tuple(sorted(alive, key=lambda p: (p.metadata.namespace, p.metadata.name)))


def pods_named(facts: Facts, word: str, option: str) -> tuple[Pod, ...]:
    """The running pods that a word names.

    Raises: ConfigError when there is none.
    """
    pods = running(facts.pods)
    if word == "all":
        found = [p for p in pods if p.metadata.namespace != SYSTEM_NAMESPACE] or list(pods)
    else:
        namespace, name = word.split("/", 1) if "/" in word else ("default", word)
        here = [p for p in pods if namespace in ("*", p.metadata.namespace)]
        found = _by_selector(here, name) if any(c in name for c in "=!,") else _by_name(here, name)
    if not found:
        raise ConfigError(option, "", f"{word!r} names no running pod; `kubectl get pods -A` lists them")
    return tuple(found)


def _by_name(pods: list[Pod], name: str) -> list[Pod]:
    exact = [p for p in pods if p.metadata.name == name]
    return exact or [p for p in pods if p.metadata.name.startswith(f"{name}-")]


def _by_selector(pods: list[Pod], text: str) -> list[Pod]:
    selector = parse_selector(text)
    return [p for p in pods if selector.matches(p.metadata.labels)]


class Expecting:
    """What is expected of attempts."""

    def __init__(self, facts: Facts, lines: Lines = no_line) -> None:
        self.facts = facts
        self.verdicts = Verdicts(facts.world, facts.slices, facts.rules, lines)
        self.asked: dict[Attempt, Connection] = {}
        """What policies were asked about an attempt."""
        self._pods = {pod.metadata.uid: pod for pod in facts.pods}
        self._dns = next((s for s in facts.services if key_of(s.metadata) == DNS_SERVICE), None)

    def party(self, place: Place) -> Party:
        """A place as an end of connections."""
        pod = self._pods.get(place.pod_uid)
        if pod is not None:
            return self.verdicts.pod(pod)
        return self.verdicts.party(place.address or self.facts.host_address)

    def judged(self, attempt: Attempt, verdict: Verdict | None) -> Attempt:
        """The attempt with what policies say of it; None: there is nobody to reach."""
        if verdict is None:
            return msgspec.structs.replace(attempt, expected=False)
        if attempt.expected:
            attempt = msgspec.structs.replace(
                attempt, expected=verdict.allowed, either=verdict.either, because=verdict.because
            )
        if verdict.asked is not None:
            self.asked[attempt] = verdict.asked
        return attempt

    def lookup(self, place: Place) -> Verdict:
        """Whether a place may ask cluster DNS."""
        found = self.verdicts.service(self.party(place), self._dns, DNS_PORT, "UDP") if self._dns is not None else None
        if found is None or not found.because:
            return Verdict(allowed=True)
        return msgspec.structs.replace(found, because=f"cluster DNS: {found.because}")


def _towards(expecting: Expecting, place: Place, word: str, ports: tuple[Port, ...]) -> list[Attempt]:
    facts = expecting.facts
    if word.startswith(("svc/", "service/")):
        return _to_service(expecting, place, service_named(facts, word), ports)
    if word == HOST:
        return _to_host(expecting, place, ports)
    return [
        attempt
        for pod in pods_named(facts, word, "--to")
        if place.pod_uid != pod.metadata.uid
        for attempt in to_pod(expecting, place, pod, ports)
    ]


def _to_host(expecting: Expecting, place: Place, ports: tuple[Port, ...]) -> list[Attempt]:
    """From a pod to this machine: who names a port expects somebody there."""
    if place.name == HOST:
        return []
    facts = expecting.facts
    source, host = expecting.party(place), expecting.verdicts.party(facts.host_address)
    attempts = []
    for port in ports or (Port(number=facts.host_port),):
        verdict = expecting.verdicts.between(source, host, port.number, port.protocol)
        attempt = Attempt(source=place, target=HOST, address=facts.host_address, port=port)
        attempts.append(expecting.judged(attempt, verdict))
    return attempts


def to_pod(expecting: Expecting, place: Place, pod: Pod, ports: tuple[Port, ...]) -> list[Attempt]:
    """The attempts from one place to one pod: the given ports, else all it declares.

    The host has no route to pods, so from there only pods in the host network can be reached.
    """
    declared = tuple(dict.fromkeys(declared_ports(pod)))
    reachable = place.name != HOST or pod.spec.host_network
    source, destination = expecting.party(place), expecting.verdicts.pod(pod)
    attempts = []
    for port in ports or declared:
        attempt = Attempt(
            source=place,
            target=f"{pod.metadata.namespace}/{pod.metadata.name}",
            address=pod.addresses[0],
            port=port,
            expected=reachable and port in declared and pod.ready,
        )
        verdict = expecting.verdicts.between(source, destination, port.number, port.protocol)
        attempts.append(expecting.judged(attempt, verdict))
    return attempts


def declared_ports(pod: Pod) -> list[Port]:
    """The TCP and UDP ports that the pod's containers declare."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    return [
        Port(number=p.container_port, protocol=p.protocol)
        for container in (*sidecars, *pod.spec.containers)
        for p in container.ports
        if p.protocol in PROTOCOLS
    ]


def service_named(facts: Facts, word: str) -> Service:
    """The Service that ``svc/namespace/name`` names.

    Raises: ConfigError.
    """
    parts = word.split("/")
    namespace, name = (parts[1], parts[2]) if len(parts) == 3 else ("default", parts[-1])
    for service in facts.services:
        if (service.metadata.namespace, service.metadata.name) == (namespace, name):
            return service
    raise ConfigError("--to", "", f"{word!r}: there is no Service {name} in namespace {namespace}")


def _to_service(expecting: Expecting, place: Place, service: Service, ports: tuple[Port, ...]) -> list[Attempt]:
    if place.name == HOST:
        return node_port_attempts(expecting, service, ports)
    return named_attempts(expecting, place, service, ports)


def named_attempts(expecting: Expecting, place: Place, service: Service, ports: tuple[Port, ...]) -> list[Attempt]:
    """The attempts from a pod to a Service by its DNS name.

    A headless Service is asked at its target ports when they are numbers.
    """
    meta = service.metadata
    offered = tuple(_offered(service))
    source, lookup = expecting.party(place), expecting.lookup(place)
    attempts = []
    for port in ports or offered:
        attempt = Attempt(
            source=place,
            target=f"svc/{meta.namespace}/{meta.name}",
            address=f"{meta.name}.{meta.namespace}.svc.{expecting.facts.domain}",
            port=port,
            named=True,
            expected=port in offered,
        )
        found = expecting.verdicts.service(source, service, port.number, port.protocol)
        attempts.append(expecting.judged(attempt, _first_hindrance(lookup, found)))
    return attempts


def _first_hindrance(lookup: Verdict, verdict: Verdict | None) -> Verdict | None:
    """Of looking a name up and of what follows, what hinders; who cannot look up needs no endpoint."""
    if verdict is None or (lookup.allowed and not lookup.either):
        return verdict
    return lookup if verdict.allowed else msgspec.structs.replace(lookup, allowed=False, either=False)


def _offered(service: Service) -> Iterable[Port]:
    for port in service.spec.ports:
        if port.protocol not in PROTOCOLS:
            continue
        direct = port.target_port if service.headless and isinstance(port.target_port, int) else None
        yield Port(number=direct or port.port, protocol=port.protocol)


def node_port_attempts(
    expecting: Expecting, service: Service, ports: tuple[Port, ...], place: Place | None = None
) -> list[Attempt]:
    """The attempts from the host, or another place outside, to each node's address at the Service's NodePorts."""
    place = place or Place(name=HOST)
    meta = service.metadata
    facts = expecting.facts
    client = expecting.party(place)
    attempts = []
    for node, address in facts.node_addresses:
        for port in service.spec.ports:
            asked = not ports or Port(number=port.port, protocol=port.protocol) in ports
            if not port.node_port or port.protocol not in PROTOCOLS or not asked:
                continue
            attempt = Attempt(
                source=place,
                target=f"{node}:{port.node_port} of svc/{meta.namespace}/{meta.name}",
                address=address,
                port=Port(number=port.node_port, protocol=port.protocol),
            )
            found = expecting.verdicts.node_port(node, client, service, port.node_port, port.protocol)
            attempts.append(expecting.judged(attempt, found))
    return attempts


def overview(facts: Facts, most: int = 9) -> tuple[Attempt, ...]:
    """The attempts behind the table of ``podwire up``.

    At most ``most`` pods, chosen round-robin over nodes, each to each; from the first of them on each node,
    every Service by name; from the host every NodePort on every node.
    """
    chosen = _spread(facts, most)
    expecting = Expecting(facts)
    attempts = [
        attempt
        for source in chosen
        for pod in chosen
        if pod is not source
        for attempt in to_pod(expecting, place_of(source), pod, ())
    ]
    fronts = {pod.spec.node_name: pod for pod in reversed(chosen)}
    for _, pod in sorted(fronts.items()):
        for service in facts.services:
            if service.spec.type != "ExternalName" and service.spec.ports:
                attempts.extend(named_attempts(expecting, place_of(pod), service, ()))
    for service in facts.services:
        attempts.extend(node_port_attempts(expecting, service, ()))
    return tuple(attempts)


def _spread(facts: Facts, most: int) -> list[Pod]:
    pods = [p for p in running(facts.pods) if declared_ports(p) and not p.spec.host_network]
    shown = [p for p in pods if p.metadata.namespace != SYSTEM_NAMESPACE] or pods
    queues: dict[str, list[Pod]] = {}
    for pod in shown:
        queues.setdefault(pod.spec.node_name, []).append(pod)
    chosen: list[Pod] = []
    while queues and len(chosen) < most:
        for node in sorted(queues):
            if len(chosen) < most:
                chosen.append(queues[node].pop(0))
            if not queues[node]:
                del queues[node]
    return chosen

"""Plans a probe: converts the words of the command line and the cluster's objects to a list of attempts (pure).

Words name sources and targets:

========================  ==========================================================================
``all``                   every pod that runs (outside kube-system, unless nothing else runs)
``host``                  the machine itself; as a target its fabric address, where the API server listens
``shop/web-0``            a pod; without a namespace, in ``default``; if no pod has the name, the pods
                          whose names start with the name and a dash (the pods of a Deployment)
``shop/app=web,tier!=x``  a label selector in a namespace; ``*/app=web`` in all
``svc/shop/web``          a Service, reached by its DNS name; from the host, by its NodePorts
========================  ==========================================================================

The expectation of each attempt follows from the objects: a Ready pod answers on its declared ports, and a Service
answers when it has an endpoint that the node may choose. Policies may deny both, and also the DNS lookup.

Cost: sources x targets x ports attempts, a socket each.
"""

from collections.abc import Iterable

import msgspec

from podwire.cluster.world import Party, World
from podwire.errors import ConfigError
from podwire.local.probe.verdicts import Expectation, PolicyVerdicts
from podwire.model.meta import controller_of, key_of
from podwire.model.pod import Pod
from podwire.model.selector import parse_selector
from podwire.model.service import EndpointSlice, Service
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EvaluationOptions
from podwire.why.policies.lines import Lines, no_line

HOST = "host"
SYSTEM_NAMESPACE = "kube-system"
PROTOCOLS = ("TCP", "UDP")
DNS_SERVICE = "kube-system/kube-dns"
DNS_PORT = 53


class PacketSource(msgspec.Struct, frozen=True):
    """The sender of packets: the host (``node`` is empty), a pod, a node, or a machine outside of the cluster."""

    name: str
    """``host``, ``namespace/pod``, or another name to show."""
    pod_uid: str = ""
    node: str = ""
    host_network: bool = False
    namespace: str = ""
    """The fabric namespace of a machine outside of the cluster; empty for other sources."""
    address: str = ""
    """The address of a node or of a machine outside of the cluster; empty for other sources."""
    workload: str = ""
    """``namespace/name`` of the Deployment or other owner of a pod; empty for other sources."""


class ProbePort(msgspec.Struct, frozen=True, order=True):
    """A port to try; protocol is TCP or UDP."""

    number: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"{self.number}/{self.protocol}"


class Attempt(msgspec.Struct, frozen=True):
    """One connection to try."""

    source: PacketSource
    target: str
    """``namespace/pod``, ``svc/namespace/name``, ``node:port of svc`` or ``host``."""
    address: str
    """An IP address, or the DNS name that the source must look up."""
    port: ProbePort
    named: bool = False
    """Whether ``address`` is a DNS name."""
    expected: bool = True
    either: bool = False
    """Whether either outcome is acceptable: policies let some endpoints of the Service through and not others."""
    because: str = ""
    """Why policies forbid the connection, in one line; empty when they allow it."""
    workload: str = ""
    """The owner of the pod that is the target; empty for other targets."""


class ProbeInputs(msgspec.Struct, frozen=True):
    """The cluster's objects that the plan reads; ``node_addresses`` has (node, address) in node order."""

    pods: tuple[Pod, ...]
    services: tuple[Service, ...]
    node_addresses: tuple[tuple[str, str], ...] = ()
    domain: str = "cluster.local"
    slices: tuple[EndpointSlice, ...] = ()
    world: World = World()
    """The policies and the objects that they select."""
    rules: EvaluationOptions = EvaluationOptions()
    host_address: str = ""
    """The address of this machine on the fabric."""
    host_port: int = 0
    """The TCP port of the API server at that address."""


def parse_port(text: str) -> ProbePort:
    """``80/TCP`` or ``80`` (TCP).

    Raises: ConfigError.
    """
    number, _, protocol = text.partition("/")
    protocol = protocol.upper() or "TCP"
    if not number.isdigit() or not 0 < int(number) < 65536 or protocol not in PROTOCOLS:
        raise ConfigError("--port", "", f"{text!r}: expected a port from 1 to 65535, then nothing, /TCP or /UDP")
    return ProbePort(number=int(number), protocol=protocol)


def plan(
    inputs: ProbeInputs, sources: tuple[str, ...], targets: tuple[str, ...], ports: tuple[ProbePort, ...]
) -> tuple[Attempt, ...]:
    """The attempts for the given words, source by source, target by target; a pod is not tried from itself.

    Raises: ConfigError for a word that names nothing.
    """
    packet_sources = [source for argument in sources for source in sources_named(inputs, argument)]
    expectations = Expectations(inputs)
    attempts: list[Attempt] = []
    for source in dict.fromkeys(packet_sources):
        for argument in targets:
            attempts.extend(_towards(expectations, source, argument, ports))
    return tuple(dict.fromkeys(attempts))


def sources_named(inputs: ProbeInputs, argument: str) -> tuple[PacketSource, ...]:
    """The sources that a word names.

    Raises: ConfigError when it names none.
    """
    if argument == HOST:
        return (PacketSource(name=HOST),)
    if argument.startswith(("svc/", "service/")):
        raise ConfigError("--from", "", f"{argument!r}: expected a pod or `host`; a Service sends no packets")
    return tuple(source_of(pod) for pod in pods_named(inputs, argument, "--from"))


def source_of(pod: Pod) -> PacketSource:
    """A pod as a source."""
    return PacketSource(
        name=f"{pod.metadata.namespace}/{pod.metadata.name}",
        pod_uid=pod.metadata.uid,
        node=pod.spec.node_name,
        host_network=pod.spec.host_network,
        workload=workload_of(pod),
    )


def workload_of(pod: Pod) -> str:
    """``namespace/name`` of the workload of a pod: its owner, or the Deployment of its ReplicaSet, or the pod
    itself."""
    meta = pod.metadata
    owner = controller_of(meta)
    name = owner.name if owner is not None else meta.name
    if owner is not None and owner.kind == "ReplicaSet":
        name = name.removesuffix(f"-{meta.labels.get(_TEMPLATE_HASH, '')}")
    return f"{meta.namespace}/{name}"


_TEMPLATE_HASH = "pod-template-hash"


def running(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods that have an address and have not ended, by namespace and name."""
    alive = [p for p in pods if p.addresses and not p.finished and not p.metadata.deletion_timestamp]
    return tuple(sorted(alive, key=lambda p: (p.metadata.namespace, p.metadata.name)))


def pods_named(inputs: ProbeInputs, argument: str, option: str) -> tuple[Pod, ...]:
    """The running pods that a word names.

    Raises: ConfigError when there is none.
    """
    pods = running(inputs.pods)
    if argument == "all":
        pods_of_word = [p for p in pods if p.metadata.namespace != SYSTEM_NAMESPACE] or list(pods)
    else:
        namespace, name = argument.split("/", 1) if "/" in argument else ("default", argument)
        in_namespace = [p for p in pods if namespace in ("*", p.metadata.namespace)]
        pods_of_word = (
            _by_selector(in_namespace, name) if any(c in name for c in "=!,") else _by_name(in_namespace, name)
        )
    if not pods_of_word:
        forms = "NAMESPACE/POD or NAMESPACE/LABEL=VALUE; `kubectl get pods -A --show-labels` lists all pods"
        raise ConfigError(option, "", f"{argument!r} names no running pod; expected {forms}")
    return tuple(pods_of_word)


def _by_name(pods: list[Pod], name: str) -> list[Pod]:
    exact = [p for p in pods if p.metadata.name == name]
    return exact or [p for p in pods if p.metadata.name.startswith(f"{name}-")]


def _by_selector(pods: list[Pod], text: str) -> list[Pod]:
    selector = parse_selector(text)
    return [p for p in pods if selector.matches(p.metadata.labels)]


class Expectations:
    """The expected outcome of attempts."""

    def __init__(self, inputs: ProbeInputs, lines: Lines = no_line) -> None:
        self.inputs = inputs
        self.verdicts = PolicyVerdicts(inputs.world, inputs.slices, inputs.rules, lines)
        self.connections: dict[Attempt, Connection] = {}
        """The connection that policies were evaluated for, by attempt."""
        self._pods = {pod.metadata.uid: pod for pod in inputs.pods}
        self._dns = next((s for s in inputs.services if key_of(s.metadata) == DNS_SERVICE), None)

    def party(self, source: PacketSource) -> Party:
        """A source as one end of connections."""
        pod = self._pods.get(source.pod_uid)
        if pod is not None:
            return self.verdicts.pod(pod)
        return self.verdicts.party(source.address or self.inputs.host_address)

    def with_expectation(self, attempt: Attempt, verdict: Expectation | None) -> Attempt:
        """The attempt with the expectation of a verdict; a verdict of None means that there is no endpoint."""
        if verdict is None:
            return msgspec.structs.replace(attempt, expected=False)
        if attempt.expected:
            attempt = msgspec.structs.replace(
                attempt, expected=verdict.allowed, either=verdict.either, because=verdict.because
            )
        if verdict.connection is not None:
            self.connections[attempt] = verdict.connection
        return attempt

    def lookup(self, source: PacketSource) -> Expectation:
        """Whether policies let a source reach cluster DNS."""
        expectation = (
            self.verdicts.service(self.party(source), self._dns, DNS_PORT, "UDP") if self._dns is not None else None
        )
        if expectation is None or not expectation.because:
            return Expectation(allowed=True)
        return msgspec.structs.replace(expectation, because=f"cluster DNS: {expectation.because}")


def _towards(
    expectations: Expectations, source: PacketSource, word: str, ports: tuple[ProbePort, ...]
) -> list[Attempt]:
    inputs = expectations.inputs
    if word.startswith(("svc/", "service/")):
        return _to_service(expectations, source, service_named(inputs, word), ports)
    if word == HOST:
        return _to_host(expectations, source, ports)
    return [
        attempt
        for pod in pods_named(inputs, word, "--to")
        if source.pod_uid != pod.metadata.uid
        for attempt in to_pod(expectations, source, pod, ports)
    ]


def _to_host(expectations: Expectations, source: PacketSource, ports: tuple[ProbePort, ...]) -> list[Attempt]:
    """From a pod to this machine; a port that the user names is expected to answer."""
    if source.name == HOST:
        return []
    inputs = expectations.inputs
    source_party, host = expectations.party(source), expectations.verdicts.party(inputs.host_address)
    attempts = []
    for port in ports or (ProbePort(number=inputs.host_port),):
        verdict = expectations.verdicts.between(source_party, host, port.number, port.protocol)
        attempt = Attempt(source=source, target=HOST, address=inputs.host_address, port=port)
        attempts.append(expectations.with_expectation(attempt, verdict))
    return attempts


def to_pod(expectations: Expectations, source: PacketSource, pod: Pod, ports: tuple[ProbePort, ...]) -> list[Attempt]:
    """The attempts from one source to one pod: at the given ports, else at all that the pod declares.

    The host has no route to pods, so from there only pods in the host network can be reached.
    """
    declared = tuple(dict.fromkeys(declared_ports(pod)))
    reachable = source.name != HOST or pod.spec.host_network
    source_party, destination = expectations.party(source), expectations.verdicts.pod(pod)
    attempts = []
    for port in ports or declared:
        attempt = Attempt(
            source=source,
            target=f"{pod.metadata.namespace}/{pod.metadata.name}",
            address=pod.addresses[0],
            port=port,
            expected=reachable and port in declared and pod.ready,
            workload=workload_of(pod),
        )
        verdict = expectations.verdicts.between(source_party, destination, port.number, port.protocol)
        attempts.append(expectations.with_expectation(attempt, verdict))
    return attempts


def declared_ports(pod: Pod) -> list[ProbePort]:
    """The TCP and UDP ports that the pod's containers declare."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    return [
        ProbePort(number=p.container_port, protocol=p.protocol)
        for container in (*sidecars, *pod.spec.containers)
        for p in container.ports
        if p.protocol in PROTOCOLS
    ]


def service_named(inputs: ProbeInputs, argument: str) -> Service:
    """The Service that ``svc/namespace/name`` names.

    Raises: ConfigError.
    """
    segments = argument.split("/")
    namespace, name = (segments[1], segments[2]) if len(segments) == 3 else ("default", segments[-1])
    for service in inputs.services:
        if (service.metadata.namespace, service.metadata.name) == (namespace, name):
            return service
    raise ConfigError("--to", "", f"{argument!r}: there is no Service {name} in namespace {namespace}")


def _to_service(
    expectations: Expectations, source: PacketSource, service: Service, ports: tuple[ProbePort, ...]
) -> list[Attempt]:
    if source.name == HOST:
        return node_port_attempts(expectations, service, ports)
    return named_attempts(expectations, source, service, ports)


def named_attempts(
    expectations: Expectations, source: PacketSource, service: Service, ports: tuple[ProbePort, ...]
) -> list[Attempt]:
    """The attempts from a pod to a Service by its DNS name.

    A headless Service is tried at its target ports when they are numbers.
    """
    meta = service.metadata
    offered = tuple(_offered(service))
    source_party, lookup = expectations.party(source), expectations.lookup(source)
    attempts = []
    for port in ports or offered:
        attempt = Attempt(
            source=source,
            target=f"svc/{meta.namespace}/{meta.name}",
            address=f"{meta.name}.{meta.namespace}.svc.{expectations.inputs.domain}",
            port=port,
            named=True,
            expected=port in offered,
        )
        expectation = expectations.verdicts.service(source_party, service, port.number, port.protocol)
        attempts.append(expectations.with_expectation(attempt, _first_hindrance(lookup, expectation)))
    return attempts


def _first_hindrance(lookup: Expectation, verdict: Expectation | None) -> Expectation | None:
    """The verdict of the lookup when it denies, otherwise that of the connection."""
    if verdict is None or (lookup.allowed and not lookup.either):
        return verdict
    return lookup if verdict.allowed else msgspec.structs.replace(lookup, allowed=False, either=False)


def _offered(service: Service) -> Iterable[ProbePort]:
    for port in service.spec.ports:
        if port.protocol not in PROTOCOLS:
            continue
        direct = port.target_port if service.headless and isinstance(port.target_port, int) else None
        yield ProbePort(number=direct or port.port, protocol=port.protocol)


def node_port_attempts(
    expectations: Expectations, service: Service, ports: tuple[ProbePort, ...], source: PacketSource | None = None
) -> list[Attempt]:
    """The attempts from the host, or another machine outside, to each node's address at the Service's NodePorts."""
    source = source or PacketSource(name=HOST)
    meta = service.metadata
    inputs = expectations.inputs
    client = expectations.party(source)
    attempts = []
    for node, address in inputs.node_addresses:
        for port in service.spec.ports:
            asked = not ports or ProbePort(number=port.port, protocol=port.protocol) in ports
            if not port.node_port or port.protocol not in PROTOCOLS or not asked:
                continue
            attempt = Attempt(
                source=source,
                target=f"{node}:{port.node_port} of svc/{meta.namespace}/{meta.name}",
                address=address,
                port=ProbePort(number=port.node_port, protocol=port.protocol),
            )
            expectation = expectations.verdicts.node_port(node, client, service, port.node_port, port.protocol)
            attempts.append(expectations.with_expectation(attempt, expectation))
    return attempts


def overview(inputs: ProbeInputs, most: int = 9) -> tuple[Attempt, ...]:
    """The attempts behind the table of ``podwire up``.

    At most ``most`` pods, chosen round-robin over nodes, each to each; from the first of them on each node,
    every Service by name; from the host every NodePort on every node.
    """
    chosen = _spread(inputs, most)
    expectations = Expectations(inputs)
    attempts = [
        attempt
        for source in chosen
        for pod in chosen
        if pod is not source
        for attempt in to_pod(expectations, source_of(source), pod, ())
    ]
    fronts = {pod.spec.node_name: pod for pod in reversed(chosen)}
    for _, pod in sorted(fronts.items()):
        for service in inputs.services:
            if service.spec.type != "ExternalName" and service.spec.ports:
                attempts.extend(named_attempts(expectations, source_of(pod), service, ()))
    for service in inputs.services:
        attempts.extend(node_port_attempts(expectations, service, ()))
    return tuple(attempts)


def _spread(inputs: ProbeInputs, most: int) -> list[Pod]:
    pods = [p for p in running(inputs.pods) if declared_ports(p) and not p.spec.host_network]
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

"""Resolves arguments to a question: source, destination address and port, and the first node of the packet (pure).

Lookups go through :class:`~podwire.why.objects.Objects`, so a question is the same for an API server and for
files.
"""

from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from podwire.cluster.world import party_at
from podwire.errors import ClusterError, ConfigError
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.selector import parse_selector
from podwire.model.service import Service
from podwire.proxy.validity import canonical_address
from podwire.why import syntax
from podwire.why.answer import ConnectionEnd
from podwire.why.objects import Objects
from podwire.why.syntax import Ref

OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses of an outside client without an address of its own (RFC 5737, RFC 3849)."""


_SHOWN = 5
_OUTSIDE = "for a destination outside the cluster, give its address"


class TypedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments as typed; empty: not given."""

    source: str
    target: str
    port: str = ""
    node: str = ""
    """The node that gets a packet from outside the cluster."""
    family: str = ""
    """``ip`` or ``ip6``."""
    outside: tuple[str, ...] = OUTSIDE
    """Addresses of ``external``, an outside client or server without an address of its own."""
    domain: str = "cluster.local"


class QuestionSource(msgspec.Struct, frozen=True):
    """The source of a connection; ``node`` is None for a source outside the cluster."""

    end: ConnectionEnd
    addresses: tuple[str, ...]
    node: Node | None = None
    on_node: bool = False
    """Whether the packet is the node's own: a process of the node, or a pod in its network."""
    namespace: str = "default"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question with all names resolved: addresses, port, protocol, and the node that decides first."""

    source: ConnectionEnd
    target: ConnectionEnd
    protocol: str
    """``tcp``, ``udp`` or ``sctp``."""
    node: Node
    on_node: bool
    service: Service | None = None
    """The Service that the question names."""
    port_named: bool = False
    """Whether the port was given by name, as by clients that look up the endpoints' own ports (SRV)."""
    notes: tuple[str, ...] = ()


async def resolve_question(asked: TypedQuestion, objects: Objects) -> Question:
    """The question of the arguments.

    Raises: ConfigError for a name that matches nothing or is ambiguous; ClusterError for a pod that is on no node yet.
    """
    nodes = await objects.nodes()
    if not nodes:
        raise ClusterError("there is no Node")
    resolver = _Resolver(asked, objects, nodes)
    client = await resolver.client(syntax.parse_source(asked.source))
    if not client.addresses:
        raise ConfigError("FROM", "", f"{client.end} has no address")
    return await resolver.towards(client, syntax.parse_target(asked.target))


class _Resolver:
    def __init__(self, asked: TypedQuestion, objects: Objects, nodes: Sequence[Node]) -> None:
        self.asked = asked
        self.objects = objects
        self.nodes = {node.metadata.name: node for node in nodes}
        self.notes: list[str] = []

    async def client(self, ref: Ref) -> QuestionSource:
        """The source that an argument names."""
        if ref.kind == "external":
            return QuestionSource(ConnectionEnd(kind="External"), self.asked.outside)
        if ref.kind == "node":
            return _of_node(self.node(ref.name, "FROM"))
        if ref.kind == "address":
            return await self._of_address(ref.name)
        if ref.kind == "name" and ref.name in self.nodes and await self.objects.pod("default", ref.name) is None:
            return _of_node(self.nodes[ref.name])
        return self._of_pod(await self.pod(ref, "FROM"))

    def _of_pod(self, pod: Pod) -> QuestionSource:
        node = self.nodes.get(pod.spec.node_name)
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if node is None or not pod.addresses:
            raise ClusterError(f"pod {key} has no {'address' if node else 'node'} yet")
        end = ConnectionEnd(kind="Pod", name=key, node=pod.spec.node_name)
        addresses = node.internal_ips if pod.spec.host_network else pod.addresses
        return QuestionSource(end, addresses, node, pod.spec.host_network, pod.metadata.namespace)

    async def _of_address(self, address: str) -> QuestionSource:
        party = party_at(address, await self.objects.pods_at(address), self.nodes.values())
        if party.pod is not None:
            return msgspec.structs.replace(self._of_pod(party.pod), addresses=(address,))
        if party.node:
            return msgspec.structs.replace(_of_node(self.nodes[party.node]), addresses=(address,))
        return QuestionSource(ConnectionEnd(kind="External"), (address,))

    def node(self, name: str, argument: str) -> Node:
        """A node by its name."""
        if name not in self.nodes:
            raise ConfigError(argument, "", f"there is no node {name!r}; the nodes are {', '.join(self.nodes)}")
        return self.nodes[name]

    async def pod(self, ref: Ref, argument: str) -> Pod:
        """The pod that an argument names; of several running pods the first."""
        namespace, name = ref.namespace or "default", ref.name
        candidates: tuple[Pod, ...]
        if any(sign in name for sign in "=!,"):
            candidates = await self.objects.pods("" if namespace == "*" else namespace, parse_selector(name))
        else:
            exact = await self.objects.pod(namespace, name)
            if exact is not None:
                return exact
            candidates = tuple(p for p in await self.objects.pods(namespace) if p.metadata.name.startswith(f"{name}-"))
        running = sorted((p for p in candidates if p.addresses and not p.finished), key=lambda p: p.metadata.name)
        if not running:
            hint = "" if ref.namespace else "; name a pod of another namespace as NAMESPACE/POD"
            problem = f"{ref.typed!r} names no running pod; {await self._running(namespace)}{hint}"
            raise ConfigError(argument, "", problem)
        if len(running) > 1:
            self.notes.append(f"{ref.typed} matches {len(running)} pods; the answer is for {running[0].metadata.name}")
        return running[0]

    async def _running(self, namespace: str) -> str:
        """The names of the running pods of a namespace, for an error."""
        if namespace == "*":
            return "`kubectl get pods -A` lists them"
        pods = [p for p in await self.objects.pods(namespace) if p.addresses and not p.finished]
        names = sorted(pod.metadata.name for pod in pods)
        further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        if not names:
            return f"namespace {namespace} has no running pods"
        return f"the running pods of namespace {namespace} are {', '.join(names[:_SHOWN])}{further}"

    async def towards(self, client: QuestionSource, ref: Ref) -> Question:
        """The whole question."""
        port, protocol = syntax.parse_port(self.asked.port) if self.asked.port else ("", "")
        if ref.port:
            inside = syntax.parse_port(ref.port)
            if (port and port != inside[0]) or (protocol and inside[1] and protocol != inside[1]):
                raise ConfigError("PORT", "", f"{self.asked.port!r} is not the port in {ref.typed!r}")
            port, protocol = inside[0], protocol or inside[1]
        if ref.kind == "name" and ref.name in self.nodes:
            ref = msgspec.structs.replace(ref, kind="node")
        if ref.kind in ("service", "name"):
            return await self._to_service(client, await self._service(client, ref), port, protocol)
        if ref.kind == "node":
            node = self.node(ref.name, "TO")
            end = ConnectionEnd(kind="Node", name=ref.name)
            return await self._to_address(client, end, node.internal_ips, (port, protocol))
        if ref.kind == "pod":
            pod = await self.pod(ref, "TO")
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            end = ConnectionEnd(kind="Pod", name=name, node=pod.spec.node_name)
            if not port.isdigit():
                port, protocol = _pod_port(pod, port, protocol)
            return await self._to_address(client, end, pod.addresses, (port, protocol))
        if ref.kind == "external":
            return await self._to_address(
                client, ConnectionEnd(kind="External"), self._outside_server(client), (port, protocol)
            )
        return await self._to_address(client, ConnectionEnd(kind="Address"), (ref.name,), (port, protocol))

    def _outside_server(self, client: QuestionSource) -> tuple[str, ...]:
        """The addresses of a server outside the cluster."""
        if client.end.kind == "External":
            raise ConfigError("TO", "", "both ends are outside the cluster, so no node sees the connection")
        return self.asked.outside

    async def _service(self, client: QuestionSource, ref: Ref) -> Service:
        namespace, name = ref.namespace or client.namespace, ref.name
        if ref.kind == "name":
            parts = syntax.dns_parts(ref.name, client.namespace, self.asked.domain)
            if parts is None:
                problem = (
                    f"{ref.typed!r} is not the DNS name of a Service, such as catalog.shop.svc.{self.asked.domain}"
                )
                raise ConfigError("TO", "", f"{problem}; {_OUTSIDE}")
            namespace, name = parts
        service = await self.objects.service(namespace, name)
        if service is None:
            outside = f"; {_OUTSIDE}" if "." in ref.name else ""
            raise ConfigError("TO", "", f"{ref.typed!r}: there is no Service {name} in namespace {namespace}{outside}")
        return service

    async def _to_service(self, client: QuestionSource, service: Service, port: str, protocol: str) -> Question:
        end = ConnectionEnd(kind="Service", name=f"{service.metadata.namespace}/{service.metadata.name}")
        if service.spec.type == "ExternalName":
            return self._by_name(client, client.addresses[0], end, service, ("0", protocol))
        number, protocol, node_port = _service_port(service, port, protocol)
        if service.headless:
            question = await self._headless(client, end, service, (str(number), protocol))
            return msgspec.structs.replace(question, port_named=bool(port) and not port.isdigit())
        addresses, where = _cluster_addresses(service), None
        if client.end.kind == "External":
            from_outside = _external_addresses(service)
            if from_outside:
                addresses = from_outside
            elif node_port:
                where = self._entry(())
                addresses, number = where.internal_ips, node_port
        question = await self._to_address(client, end, addresses, (str(number), protocol), where)
        return msgspec.structs.replace(question, service=service)

    async def _headless(
        self, client: QuestionSource, target: ConnectionEnd, service: Service, port: tuple[str, str]
    ) -> Question:
        """A question about a headless Service: clients get the addresses of its endpoints, in a family that they
        have."""
        slices = await self.objects.slices(service)
        listed = [endpoint.addresses[0] for item in slices for endpoint in item.endpoints or () if endpoint.addresses]
        source = self._same_family(client.addresses, listed, target)[0] if listed else client.addresses[0]
        return self._by_name(client, source, target, service, port)

    def _by_name(
        self, client: QuestionSource, source: str, end: ConnectionEnd, service: Service, port: tuple[str, str]
    ) -> Question:
        """A question about a Service that has no address of its own."""
        return Question(
            source=msgspec.structs.replace(client.end, address=source),
            target=msgspec.structs.replace(end, port=int(port[0])),
            protocol=port[1] or "tcp",
            node=client.node or self._entry(()),
            on_node=client.on_node,
            service=service,
            notes=tuple(self.notes),
        )

    async def _to_address(
        self,
        client: QuestionSource,
        end: ConnectionEnd,
        addresses: Sequence[str],
        port: tuple[str, str],
        where: Node | None = None,
    ) -> Question:
        source, target = self._same_family(client.addresses, addresses, end)
        number, protocol = port
        if not number.isdigit():
            number, protocol = await self._only_port(target, port)
        node = client.node or where or self._entry((target,))
        if ip_address(target).is_unspecified or ip_address(target).is_multicast:
            raise ConfigError("TO", "", f"{target} is not an address that a connection can reach")
        if ip_address(target).is_loopback:
            if not client.on_node:
                raise ConfigError("TO", "", f"{target} is the client itself, so no node sees the connection")
            source = target
        return Question(
            source=msgspec.structs.replace(client.end, address=source),
            target=msgspec.structs.replace(end, address=target, port=int(number)),
            protocol=protocol or "tcp",
            node=node,
            on_node=client.on_node,
            notes=tuple(self.notes),
        )

    async def _only_port(self, target: str, port: tuple[str, str]) -> tuple[str, str]:
        """The port of the Service with this address: its only port, or the port with the given name."""
        for service in await self.objects.services_at(target, 0):
            number, protocol, _ = _service_port(service, *port)
            return str(number), protocol
        raise ConfigError("PORT", "", f"no Service has the address {target}, so give the port")

    def _same_family(self, sources: Sequence[str], targets: Sequence[str], end: ConnectionEnd) -> tuple[str, str]:
        for target in targets:
            is_ipv6 = ":" in target
            if self.asked.family and (self.asked.family == "ip6") != is_ipv6:
                continue
            for source in sources:
                if (":" in source) == is_ipv6:
                    return source, target
        if not targets:
            raise ConfigError("TO", "", f"{end} has no address")
        expected = {"ip": "an IPv4 address", "ip6": "an IPv6 address"}.get(self.asked.family, "addresses of one family")
        raise ConfigError(
            "TO", "", f"FROM and TO do not both have {expected}: FROM has {', '.join(sources)}, TO {', '.join(targets)}"
        )

    def _entry(self, targets: Sequence[str]) -> Node:
        """The node that gets a packet from outside the cluster."""
        if self.asked.node:
            return self.node(self.asked.node, "--node")
        for node in self.nodes.values():
            if set(targets) & set(node.internal_ips):
                return node
        ready = [node for node in self.nodes.values() if node.ready and node.internal_ips] or list(self.nodes.values())
        name = ready[0].metadata.name
        self.notes.append(f"the network outside chooses the node; the answer is for {name} (--node chooses another)")
        return ready[0]


def _of_node(node: Node) -> QuestionSource:
    return QuestionSource(ConnectionEnd(kind="Node", name=node.metadata.name), node.internal_ips, node, True)


def _pod_port(pod: Pod, port: str, protocol: str) -> tuple[str, str]:
    """Number and protocol of a pod's port, by its name or because it is the only one.

    Raises: ConfigError.
    """
    declared = [p for container in pod.spec.containers for p in container.ports]
    fits = [p for p in declared if (not port or p.name == port) and (not protocol or p.protocol.lower() == protocol)]
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if len({(p.container_port, p.protocol) for p in fits}) == 1:
        return str(fits[0].container_port), fits[0].protocol.lower()
    listed = ", ".join(f"{p.name + ' ' if p.name else ''}{p.container_port}/{p.protocol}" for p in declared)
    problem = f"{name} has no port {port!r}" if port and not fits else f"which port of {name}"
    raise ConfigError("PORT", "", f"{problem}; it declares {listed or 'none, so give a number'}")


def _cluster_addresses(service: Service) -> tuple[str, ...]:
    """The cluster addresses of a Service, the first family first."""
    texts = service.spec.cluster_ips or (service.spec.cluster_ip,)
    return tuple(filter(None, (canonical_address(text) for text in texts)))


def _external_addresses(service: Service) -> tuple[str, ...]:
    """The load balancer addresses of a Service, then its external addresses."""
    spec = service.spec
    balanced = (entry.ip for entry in service.status.load_balancer.ingress if entry.ip and entry.ip_mode != "Proxy")
    texts = (*(balanced if spec.type == "LoadBalancer" else ()), *spec.external_ips)
    return tuple(filter(None, (canonical_address(text) for text in texts)))


def _service_port(service: Service, port: str, protocol: str) -> tuple[int, str, int]:
    """Number, protocol and node port of the requested port; a number that the Service does not have is kept.

    Raises: ConfigError when the port is ambiguous.
    """
    ports = [p for p in service.spec.ports if not protocol or p.protocol.lower() == protocol]
    name = f"Service {service.metadata.namespace}/{service.metadata.name}"
    listed = ", ".join(f"{p.name + ' ' if p.name else ''}{p.port}/{p.protocol}" for p in service.spec.ports)
    if not port:
        if len(ports) != 1:
            problem = "has several ports" if ports else f"has no port for {protocol.upper()}"
            raise ConfigError("PORT", "", f"{name} {problem}; name one of {listed}")
        fits = ports
    elif port.isdigit():
        fits = [p for p in ports if p.port == int(port)]
    else:
        fits = [p for p in ports if p.name == port]
        if not fits:
            raise ConfigError("PORT", "", f"{name} has no port {port!r}; the ports are {listed}")
    if not fits:
        return int(port), protocol or "tcp", 0
    chosen = next((p for p in fits if p.protocol == "TCP"), fits[0])
    return chosen.port, chosen.protocol.lower(), chosen.node_port

"""What policies make of a connection that is to be tried: expected to pass, to be dropped, or either way (pure).

The verdict is that of the reference evaluator, on the objects as the API has them. A Service stands for the endpoints
that the source's node may choose, since policies see the pod that is chosen. When they let some of them through and not
others, nothing is expected: it depends on the choice.
"""

from collections.abc import Iterable, Sequence

import msgspec

from podwire.cluster.addresses import owns_addresses, pods_by_address
from podwire.cluster.names import NODE_PROXY
from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.policy.evaluate import Connection, EvaluationOptions, evaluate
from podwire.proxy.resolve import SERVICE_NAME_LABEL, handled, resolve
from podwire.proxy.servicemap import Endpoint, NodeFacts, ServicePort
from podwire.why.explain import explain_connection
from podwire.why.policies.verdict import Lines, no_line

_RELAYED = "userspace"


class Verdict(msgspec.Struct, frozen=True):
    """What is to be expected; ``because`` says in one line what policies have against it."""

    allowed: bool
    either: bool = False
    because: str = ""
    asked: Connection | None = None
    """The connection that it is about: of several, the first one that is denied."""


class Verdicts:
    """What policies say between the places of one cluster."""

    def __init__(
        self,
        world: World,
        slices: Iterable[EndpointSlice] = (),
        rules: EvaluationOptions | None = None,
        lines: Lines = no_line,
    ) -> None:
        self._world = world
        self._rules = rules or EvaluationOptions()
        self._lines = lines
        self._owners = pods_by_address(world.pods)
        self._nodes = {node.metadata.name: node for node in world.nodes}
        self._slices: dict[str, list[EndpointSlice]] = {}
        for piece in slices:
            name = piece.metadata.labels.get(SERVICE_NAME_LABEL, "")
            self._slices.setdefault(f"{piece.metadata.namespace}/{name}", []).append(piece)

    def party(self, address: str) -> Party:
        """Who has an address."""
        pod = self._owners.get(address)
        if pod is not None:
            return Party(address=address, node=pod.spec.node_name, pod=pod)
        return self._world.party(address)

    def pod(self, pod: Pod) -> Party:
        """A pod as an end of a connection; one in the node's network is its node."""
        if owns_addresses(pod):
            return Party(address=pod.addresses[0], node=pod.spec.node_name, pod=pod)
        return Party(address=pod.addresses[0], node=pod.spec.node_name)

    def between(self, source: Party, destination: Party, port: int, protocol: str) -> Verdict:
        """From one to another; who has addresses of both families uses that of the destination's."""
        source = self._of_family(source, destination.address)
        asked = Connection(source=source, destination=destination, protocol=protocol, port=port)
        if evaluate(self._world, asked, self._rules).allowed:
            return Verdict(allowed=True, asked=asked)
        because = explain_connection(self._world, asked, self._rules, self._lines).message
        return Verdict(allowed=False, because=because, asked=asked)

    def _of_family(self, party: Party, other: str) -> Party:
        node = self._nodes.get(party.node)
        known = party.pod.addresses if party.pod is not None else node.internal_ips if node is not None else ()
        fitting = [address for address in known if (":" in address) == (":" in other)]
        if party.address in fitting or not fitting:
            return party
        return msgspec.structs.replace(party, address=fitting[0])

    def service(self, source: Party, service: Service, port: int, protocol: str) -> Verdict | None:
        """From a place to a Service; None: it has no endpoint that may be chosen there."""
        if self._mode(source.node) == _RELAYED and not service.headless:
            source = self._node_party(source.node)
        found = self.endpoints(service, source.node, port, protocol)
        return self._any(((source, end) for end in found), protocol)

    def node_port(self, node: str, client: Party, service: Service, port: int, protocol: str) -> Verdict | None:
        """From outside to a Service's port at a node; None: it has no endpoint that may be chosen there."""
        ends: list[tuple[Party, Endpoint]] = []
        for one in self._ports(service, node):
            if (one.node_port, one.protocol.upper()) == (port, protocol):
                chosen = one.local_endpoints if one.external_local else one.cluster_endpoints
                ends += [(self._client(node, client, end), end) for end in chosen]
        return self._any(ends, protocol)

    def endpoints(self, service: Service, node: str, port: int, protocol: str) -> Sequence[Endpoint]:
        """Where a connection to a Service may end that a pod of a node makes."""
        if service.headless or not handled(service):
            pieces = self._slices.get(key_of(service.metadata), [])
            ready = (
                entry for piece in pieces for entry in piece.endpoints or () if entry.conditions.ready is not False
            )
            return [Endpoint(address, port) for entry in ready for address in entry.addresses]
        for one in self._ports(service, node):
            if (one.port, one.protocol.upper()) == (port, protocol):
                return one.internal_endpoints
        return ()

    def _ports(self, service: Service, node: str) -> tuple[ServicePort, ...]:
        pieces = self._slices.get(key_of(service.metadata), [])
        known = self._nodes.get(node)
        zone = known.zone if known is not None else ""
        return resolve(service, pieces, NodeFacts(name=node, zone=zone))

    def _any(self, ends: Iterable[tuple[Party, Endpoint]], protocol: str) -> Verdict | None:
        said = [self.between(source, self.party(end.address), end.port, protocol) for source, end in ends]
        denied = [one for one in said if not one.allowed]
        if not said:
            return None
        if not denied:
            return said[0]
        if len(denied) < len(said):
            return Verdict(allowed=True, either=True, because=denied[0].because, asked=denied[0].asked)
        return denied[0]

    def _client(self, node: str, client: Party, end: Endpoint) -> Party:
        """How an endpoint sees a client from outside: masqueraded where the connection goes on to another node."""
        if end.local and self._mode(node) != _RELAYED:
            return client
        return self._node_party(node)

    def _node_party(self, node: str) -> Party:
        known = self._nodes.get(node)
        address = known.internal_ips[0] if known is not None and known.internal_ips else ""
        return Party(address=address, node=node)

    def _mode(self, node: str) -> str:
        known: Node | None = self._nodes.get(node)
        return known.metadata.annotations.get(NODE_PROXY, "") if known is not None else ""

"""The expected effect of policies on a connection: allowed, dropped, or dependent on the endpoint (pure).

The reference evaluator decides, with the objects in the API. For a Service it judges every endpoint that the source's
node may choose, because policies apply to the chosen pod. When policies allow only some of these endpoints, either
outcome is acceptable.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

import msgspec

from podwire.cluster.addresses import owns_addresses, pods_by_address
from podwire.cluster.names import NODE_PROXY
from podwire.cluster.podnetworks import NodePodNetwork, network_at
from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice, Service
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EvaluationOptions, evaluate
from podwire.proxy.resolve import handled, resolve
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.why.policies.lines import Lines, no_line

_RELAYED = "userspace"


class Expectation(msgspec.Struct, frozen=True):
    """The expected outcome; ``because`` says in one line why policies deny the connection (empty: they do not)."""

    allowed: bool
    either: bool = False
    because: str = ""
    connection: Connection | None = None
    """The evaluated connection; with several endpoints the first denied connection, if any."""


class PolicyVerdicts:
    """Evaluates policies for connections between the pods, nodes and Services of one cluster."""

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
        for endpoint_slice in slices:
            name = endpoint_slice.metadata.labels.get(SERVICE_NAME_LABEL, "")
            self._slices.setdefault(f"{endpoint_slice.metadata.namespace}/{name}", []).append(endpoint_slice)

    def party(self, address: str) -> Party:
        """The pod, node or outside host that has an address, as one end of a connection."""
        pod = self._owners.get(address)
        if pod is not None:
            return Party(address=address, node=pod.spec.node_name, pod=pod)
        return self._world.party(address)

    def pod(self, pod: Pod) -> Party:
        """A pod as one end of a connection; a pod in the host network counts as its node."""
        if owns_addresses(pod):
            return Party(address=pod.addresses[0], node=pod.spec.node_name, pod=pod)
        return Party(address=pod.addresses[0], node=pod.spec.node_name)

    def _across_networks(self, connection: Connection) -> Expectation | None:
        """What is expected between pods of two networks: that depends on contracts, which no object shows."""
        source, destination = self._network(connection.source), self._network(connection.destination)
        if source is None or destination is None or source.name == destination.name:
            return None
        because = f"the networks {source} and {destination} are separate, unless a contract joins them"
        return Expectation(allowed=False, either=True, because=because, connection=connection)

    def _network(self, party: Party) -> NodePodNetwork | None:
        node = self._nodes.get(party.node)
        return network_at(node, ip_address(party.address)) if node is not None and party.pod is not None else None

    def between(self, source: Party, destination: Party, port: int, protocol: str) -> Expectation:
        """The verdict for a connection; a source with both IP families uses the family of the destination."""
        source = self._of_family(source, destination.address)
        connection = Connection(source=source, destination=destination, protocol=protocol, port=port)
        if evaluate(self._world, connection, self._rules).allowed:
            return self._across_networks(connection) or Expectation(allowed=True, connection=connection)
        from podwire.why.explain import explain_connection  # here, since most connections are allowed

        because = explain_connection(self._world, connection, self._rules, self._lines).message
        return Expectation(allowed=False, because=because, connection=connection)

    def _of_family(self, party: Party, other: str) -> Party:
        node = self._nodes.get(party.node)
        known = party.pod.addresses if party.pod is not None else node.internal_ips if node is not None else ()
        fitting = [address for address in known if (":" in address) == (":" in other)]
        if party.address in fitting or not fitting:
            return party
        return msgspec.structs.replace(party, address=fitting[0])

    def service(self, source: Party, service: Service, port: int, protocol: str) -> Expectation | None:
        """The verdict for a connection to a Service; None when the source's node can choose no endpoint."""
        if self._mode(source.node) == _RELAYED and not service.headless:
            source = self._node_party(source.node)
        endpoints = self.endpoints(service, source.node, port, protocol)
        return self._any(((source, end) for end in endpoints), protocol)

    def node_port(self, node: str, client: Party, service: Service, port: int, protocol: str) -> Expectation | None:
        """The verdict for a client outside and a NodePort of a node; None when that node can choose no endpoint."""
        ends: list[tuple[Party, ResolvedEndpoint]] = []
        for service_port in self._ports(service, node):
            if (service_port.node_port, service_port.protocol.upper()) == (port, protocol):
                chosen = service_port.local_endpoints if service_port.external_local else service_port.cluster_endpoints
                ends += [(self._client(node, client, end), end) for end in chosen]
        return self._any(ends, protocol)

    def endpoints(self, service: Service, node: str, port: int, protocol: str) -> Sequence[ResolvedEndpoint]:
        """The endpoints that a node may choose for a connection of its pods to a Service."""
        if service.headless or not handled(service):
            endpoint_slices = self._slices.get(key_of(service.metadata), [])
            ready = (
                entry
                for endpoint_slice in endpoint_slices
                for entry in endpoint_slice.endpoints or ()
                if entry.conditions.ready is not False
            )
            return [ResolvedEndpoint(address, port) for entry in ready for address in entry.addresses]
        for service_port in self._ports(service, node):
            if (service_port.port, service_port.protocol.upper()) == (port, protocol):
                return service_port.internal_endpoints
        return ()

    def _ports(self, service: Service, node: str) -> tuple[ResolvedPort, ...]:
        endpoint_slices = self._slices.get(key_of(service.metadata), [])
        known = self._nodes.get(node)
        zone = known.zone if known is not None else ""
        return resolve(service, endpoint_slices, NodeFacts(name=node, zone=zone))

    def _any(self, ends: Iterable[tuple[Party, ResolvedEndpoint]], protocol: str) -> Expectation | None:
        verdicts = [self.between(source, self.party(end.address), end.port, protocol) for source, end in ends]
        denied = [verdict for verdict in verdicts if not verdict.allowed]
        if not verdicts:
            return None
        if not denied:
            return verdicts[0]
        if len(denied) < len(verdicts):
            return Expectation(allowed=True, either=True, because=denied[0].because, connection=denied[0].connection)
        return denied[0]

    def _client(self, node: str, client: Party, end: ResolvedEndpoint) -> Party:
        """The source that an endpoint sees: the node when the connection is masqueraded, otherwise the client."""
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

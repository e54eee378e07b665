"""Separate networks for the pods of one cluster: settings, ranges on each node, and separation (pure).

Each pod network has a VLAN and, by family, a range of addresses. The range of a node has the same position in it as the
node's pod CIDR has in the cluster's (:func:`node_range`). So ranges of different nodes never overlap, no controller
assigns them, and each node knows those of all others.

Packets between two networks are refused by the routing of every node that they pass. For each network there is a
policy routing rule for its addresses as the source, which looks up a table with an ``unreachable`` route to each other
network. The table has no other routes; a packet that none of them matches goes on to the table main. A contract is a
rule before these, in each direction, which goes to the table main at once. With ports it matches those of the provider,
as the destination in one direction and as the source in the other, without connection tracking (as contracts of ACI).

A pod cannot send with an address of another network: reverse-path filtering drops forged IPv4 sources, and the rules of
policies those of both families.

Cost: per network and family a rule, and a route to each other network; two rules per contract, port and family. Rules
are matched one after the other, for each packet that is not sent by a connection of the node itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from itertools import combinations, product
from operator import attrgetter

import msgspec

from podwire.cluster.podnetworks import DEFAULT_NETWORK, SEPARATION_PRIORITY
from podwire.errors import ConfigError
from podwire.routing.networks import Address, Network
from podwire.state.network import NetworkState
from podwire.state.route import TABLE_MAIN, FibRule, Route

VLANS = 1, 4094
"""The numbers of VLANs that IEEE 802.1Q does not reserve."""
CONTRACTS, NETWORKS = SEPARATION_PRIORITY - 1, SEPARATION_PRIORITY
"""The priorities of the rules of contracts and of networks: before those of EgressPolicies."""
_TABLES = 20000
"""The routing table of a network has this number and that of its VLAN."""
_UNREACHABLE_METRIC = 4096
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"(TCP|UDP|SCTP)(?:/(\d{1,5})(?:-(\d{1,5}))?)?|ICMP")
_LEAST_HOST_BITS = 2


class PodNetworkSection(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A network of pods: its name, the number of its VLAN, and one range of each family for all nodes together."""

    name: str
    id: int
    cidrs: tuple[str, ...]

    @property
    def networks(self) -> tuple[Network, ...]:
        """``cidrs`` as values."""
        return tuple(map(ip_network, self.cidrs))


class Contract(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Two networks between which packets pass: pods of ``consumer`` reach ``ports`` of pods of ``provider``.

    A port is ``TCP/80``, ``UDP/8000-8080``, ``SCTP`` or ``ICMP``; without ports everything passes. Policies that select
    pods by labels narrow a contract down.
    """

    name: str
    consumer: str
    provider: str
    ports: tuple[str, ...] = ()


class PodNetworks(msgspec.Struct, frozen=True):
    """The pod networks of a cluster besides the default one, whose VLAN is ``default_id``, and their contracts."""

    default_id: int = 0
    networks: tuple[PodNetworkSection, ...] = ()
    contracts: tuple[Contract, ...] = ()

    @property
    def ranges(self) -> tuple[Network, ...]:
        """The ranges of all networks but the default one."""
        return tuple(cidr for network in self.networks for cidr in network.networks)

    def check(self, source: str, path: str) -> None:
        """Checks the lists ``networks`` and ``contracts`` below ``path``.

        Raises: ConfigError naming the field.
        """
        names: dict[str, str] = {DEFAULT_NETWORK: "the network of pods that name none"}
        ids: dict[int, str] = {self.default_id: f"{path}.id"}
        for index, network in enumerate(self.networks):
            field = f"{path}.networks[{index}]"
            _check_name(source, f"{field}.name", network.name, names)
            if not VLANS[0] <= network.id <= VLANS[1]:
                raise ConfigError(source, f"{field}.id", f"{network.id} is not in {VLANS[0]}..{VLANS[1]}")
            if network.id in ids:
                raise ConfigError(source, f"{field}.id", f"{network.id} is the VLAN of {ids[network.id]} already")
            ids[network.id] = field
            _check_cidrs(source, f"{field}.cidrs", network.cidrs)
        self.check_overlap(source, path, {})
        contracts: dict[str, str] = {}
        for index, contract in enumerate(self.contracts):
            field = f"{path}.contracts[{index}]"
            _check_name(source, f"{field}.name", contract.name, contracts)
            _check_contract(source, field, contract, names)

    def check_overlap(self, source: str, path: str, reserved: Mapping[str, Iterable[Network]]) -> None:
        """Checks that no address is in two ranges; ``reserved`` are ranges of other settings, by their names.

        Raises: ConfigError naming the field.
        """
        fields = [
            (f"{path}.networks[{at}].cidrs[{of}]", cidr)
            for at, network in enumerate(self.networks)
            for of, cidr in enumerate(network.networks)
        ]
        foreign = [(name, cidr) for name, ranges in reserved.items() for cidr in ranges]
        pairs = [*combinations(fields, 2), *((other, own) for own in fields for other in foreign)]
        for (name, first), (field, second) in pairs:
            if first.overlaps(second):
                raise ConfigError(source, field, f"{second} overlaps with {name}, {first}")


def _check_name(source: str, field: str, name: str, known: dict[str, str]) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(source, field, f"{name!r} is not a name: expected lower-case letters, digits and '-'")
    if name in known:
        raise ConfigError(source, field, f"{name!r} is taken by {known[name]}")
    known[name] = field.removesuffix(".name")


def _check_cidrs(source: str, field: str, cidrs: Sequence[str]) -> None:
    if not cidrs:
        raise ConfigError(source, field, "is empty: expected one range of each family of the cluster, as 10.245.0.0/16")
    versions: set[int] = set()
    for index, text in enumerate(cidrs):
        try:
            version = ip_network(text).version
        except ValueError as failure:
            raise ConfigError(source, f"{field}[{index}]", str(failure)) from failure
        if version in versions:
            raise ConfigError(source, f"{field}[{index}]", f"{text} is the second range of IPv{version}: expected one")
        versions.add(version)


def _check_contract(source: str, field: str, contract: Contract, names: Mapping[str, str]) -> None:
    for end, name in (("consumer", contract.consumer), ("provider", contract.provider)):
        if name not in names:
            raise ConfigError(source, f"{field}.{end}", f"there is no network {name!r}: expected {', '.join(names)}")
    if contract.consumer == contract.provider:
        raise ConfigError(
            source, f"{field}.provider", f"{contract.provider} is the consumer too: expected two networks"
        )
    for index, port in enumerate(contract.ports):
        match = _PORT.fullmatch(port)
        low, high = (int(match[2] or 1), int(match[3] or match[2] or 1)) if match else (0, 0)
        if not 1 <= low <= high <= 0xFFFF:
            problem = f"{port!r} is not a port: expected TCP/80, UDP/8000-8080, SCTP or ICMP"
            raise ConfigError(source, f"{field}.ports[{index}]", problem)


def node_range(network: Network, pods: Network, cluster: Network) -> Network:
    """The part of ``network`` for a node: where its pod CIDR is in the CIDR of the cluster.

    Raises: ValueError when a pod CIDR is outside of the cluster's, or the part has fewer than four addresses.
    """
    if not (pods.overlaps(cluster) and pods.prefixlen >= cluster.prefixlen):
        raise ValueError(f"the pod CIDR {pods} is outside of the cluster's {cluster}")
    length = network.prefixlen + pods.prefixlen - cluster.prefixlen
    if length > network.max_prefixlen - _LEAST_HOST_BITS:
        largest = network.max_prefixlen - _LEAST_HOST_BITS - pods.prefixlen + cluster.prefixlen
        raise ValueError(f"{network} is too small for parts of nodes: expected a /{largest} or larger")
    position = int(pods.network_address) - int(cluster.network_address) >> pods.max_prefixlen - pods.prefixlen
    first = int(network.network_address) + (position << network.max_prefixlen - length)
    return type(network)((first, length))


def node_ranges(
    network: PodNetworkSection, pods: Sequence[Network], clusters: Sequence[Network]
) -> tuple[Network, ...]:
    """The ranges of one node, for each family that the network and the node have; ``clusters`` are ``clusterCIDRs``.

    Raises: ValueError when there are none, or not exactly one CIDR of the cluster of a family.
    """
    ranges = []
    for cidr in network.networks:
        own = next((pod_cidr for pod_cidr in pods if pod_cidr.version == cidr.version), None)
        if own is None:
            continue
        around = [cluster for cluster in clusters if cluster.version == cidr.version]
        if len(around) != 1:
            shown = ", ".join(map(str, around)) or "none"
            raise ValueError(f"expected one IPv{cidr.version} range in clusterCIDRs of the node's agent, not {shown}")
        ranges.append(node_range(cidr, own, around[0]))
    if not ranges:
        raise ValueError("it has no range of a family of the node's pod CIDRs")
    return tuple(ranges)


def separation(networks: PodNetworks, clusters: Sequence[Network]) -> NetworkState:
    """The rules and tables that refuse packets between networks without a contract; ``clusters``: ``clusterCIDRs``.

    Packets to an address of a network that no pod has are refused, too, instead of leaving the cluster.
    """
    if not networks.networks:
        return NetworkState()
    ranges: dict[str, tuple[int, Sequence[Network]]] = {DEFAULT_NETWORK: (networks.default_id, tuple(clusters))}
    ranges |= {network.name: (network.id, network.networks) for network in networks.networks}
    rules = [rule for contract in networks.contracts for rule in _contract_rules(contract, ranges)]
    routes = [Route(dst=str(cidr), kind="unreachable", metric=_UNREACHABLE_METRIC) for cidr in networks.ranges]
    for name, (vlan, own) in ranges.items():
        table = _TABLES + vlan
        rules += [FibRule(priority=NETWORKS, src=str(cidr), table=table) for cidr in own]
        versions = {cidr.version for cidr in own}
        for other, (_, closed) in ranges.items():
            if other != name:
                shut = (cidr for cidr in closed if cidr.version in versions)
                routes += [Route(dst=str(cidr), kind="unreachable", table=table) for cidr in shut]
    return NetworkState(rules=tuple(dict.fromkeys(rules)), routes=tuple(routes))


def refusing_route(
    state: NetworkState, source: Address, destination: Address, protocol: str, port: int
) -> Route | None:
    """The route by which a node with this state refuses a packet between pods; None: no network separates them.

    ``protocol`` is in lower case, ``port`` the destination's.
    """
    for rule in sorted(state.rules, key=attrgetter("priority")):
        if rule.priority not in (CONTRACTS, NETWORKS) or not _matches(rule, source, destination, protocol, port):
            continue
        if rule.table == TABLE_MAIN:
            return None
        for route in state.routes:
            if route.table == rule.table and route.dst != "default" and _contains(route.dst, destination):
                return route
    return None


def _matches(rule: FibRule, source: Address, destination: Address, protocol: str, port: int) -> bool:
    if rule.sport or (rule.ipproto and rule.ipproto != protocol):
        return False
    low, _, high = rule.dport.partition("-")
    in_range = not rule.dport or int(low) <= port <= int(high or low)
    return in_range and all(
        not text or _contains(text, address) for text, address in ((rule.src, source), (rule.dst, destination))
    )


def _contains(text: str, address: Address) -> bool:
    network = ip_network(text)
    return network.version == address.version and address in network


def _contract_rules(contract: Contract, ranges: Mapping[str, tuple[int, Sequence[Network]]]) -> Iterator[FibRule]:
    consumers, providers = ranges[contract.consumer][1], ranges[contract.provider][1]
    for consumer, provider in product(consumers, providers):
        if consumer.version != provider.version:
            continue
        for port in contract.ports or ("",):
            protocol, _, number = port.lower().partition("/")
            if protocol == "icmp" and consumer.version == 6:
                protocol = "ipv6-icmp"
            match = {"priority": CONTRACTS, "ipproto": protocol, "table": TABLE_MAIN}
            yield FibRule(**match, src=str(consumer), dst=str(provider), dport=number)  # type: ignore[arg-type]
            yield FibRule(**match, src=str(provider), dst=str(consumer), sport=number)  # type: ignore[arg-type]

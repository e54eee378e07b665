"""The peers and ports of rules as text, and the parts of them that a connection does not match (pure).

Each mismatch has a cost, so that the nearest of several rules can be found: a value that looks like a misspelling costs
less than half of another value, and another value costs less than a missing label. So two slips in one rule cost less
than one term that is meant for other pods. :mod:`podwire.policy.evaluate` decides
whether a peer or a port matches; this module only says how far it is from a match.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from podwire.model.policy import ClusterPeer, ClusterProtocol, IPBlock, PolicyPeer, PolicyPort, ProtocolPorts
from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.connectionmatch import in_block
from podwire.policy.evaluate import INGRESS, DirectionCase

_ALIKE = 0.7
"""The share of equal letters from which a value counts as a misspelling."""
_SLIP, _OTHER, _MISSING, _HOPELESS = 0.5, 1.2, 1.5, 4.0
"""The costs of a misspelled value, of another value, of a missing label, and of a peer of another kind."""
_NEWER = "a kind that is newer than this program"


class RulePart(NamedTuple):
    """A part of a rule: the path of its field, and its text for readers."""

    field: str
    text: str


class Miss(NamedTuple):
    """A part that does not match, what the cluster has instead, and the cost of the mismatch."""

    part: RulePart
    actual: str
    cost: float


def selector_text(selector: LabelSelector) -> str:
    """``app=web,tier!=back``; ``{}`` for the selector of everything."""
    return str(selector.requirements()) or "{}"


def peer_text(peer: PolicyPeer) -> str:
    """A peer of a NetworkPolicy."""
    if peer.ip_block is not None:
        return _block_text(peer.ip_block)
    texts = [f"namespaceSelector {selector_text(peer.namespace_selector)}"] if peer.namespace_selector else []
    texts += [f"podSelector {selector_text(peer.pod_selector)}"] if peer.pod_selector else []
    return ", ".join(texts) or "a peer that matches nothing"


def cluster_peer_text(peer: ClusterPeer) -> str:
    """A peer of a cluster policy."""
    if peer.namespaces is not None:
        return f"namespaces {selector_text(peer.namespaces)}"
    if peer.pods is not None:
        namespaces, pods = selector_text(peer.pods.namespace_selector), selector_text(peer.pods.pod_selector)
        return f"pods {pods} of {'all namespaces' if namespaces == '{}' else f'namespaces {namespaces}'}"
    if peer.networks:
        return f"networks {', '.join(peer.networks)}"
    return f"nodes {selector_text(peer.nodes)}" if peer.nodes is not None else _NEWER


def _block_text(block: IPBlock) -> str:
    excepted = f" except {', '.join(block.excepted)}" if block.excepted else ""
    return f"ipBlock {block.cidr}{excepted}"


def port_text(port: PolicyPort) -> str:
    """A port of a NetworkPolicy: ``TCP 80``, ``TCP 80-90``, ``TCP http``, or ``TCP`` for all of them."""
    if port.port is None:
        return port.protocol or "TCP"
    last = f"-{port.end_port}" if port.end_port else ""
    return f"{port.protocol or 'TCP'} {port.port}{last}"


def protocol_text(protocol: ClusterProtocol) -> str:
    """A port of a cluster policy, in the same words."""
    if protocol.destination_named_port:
        return f"port {protocol.destination_named_port}"
    protocols = (("TCP", protocol.tcp), ("UDP", protocol.udp), ("SCTP", protocol.sctp))
    return (
        ", ".join(f"{protocol_name}{_number(ports)}" for protocol_name, ports in protocols if ports is not None)
        or _NEWER
    )


def _number(ports: ProtocolPorts) -> str:
    destination = ports.destination_port
    if destination is None:
        return ""
    if destination.number is not None:
        return f" {destination.number}"
    return f" {destination.range.start}-{destination.range.end}" if destination.range is not None else " no port"


def peer_misses(case: DirectionCase, namespace: str, peer: PolicyPeer, field: str) -> tuple[Miss, ...]:
    """The parts of a NetworkPolicy's peer that the other end does not match; ``namespace`` is the policy's."""
    whole = RulePart(field, peer_text(peer))
    if peer.ip_block is not None:
        return (_block_miss(case.peer.addresses[0], peer.ip_block, f"{field}.ipBlock"),)
    if case.peer.pod is None:
        return (Miss(whole, f"{case.peer.name} is no pod", _HOPELESS),)
    meta = case.peer.pod.metadata
    misses: list[Miss] = []
    if peer.namespace_selector is not None:
        misses += _namespace_misses(case, meta.namespace, peer.namespace_selector, f"{field}.namespaceSelector")
    elif meta.namespace != namespace:
        difference = f"that is for pods of namespace {namespace}, the pod is in {meta.namespace}"
        misses.append(Miss(whole, difference, _cost_of(meta.namespace, (namespace,))))
    if peer.pod_selector is not None:
        misses += _terms(peer.pod_selector, f"{field}.podSelector", meta.labels, "the pod")
    return tuple(misses)


def cluster_peer_misses(case: DirectionCase, peer: ClusterPeer, field: str) -> tuple[Miss, ...]:
    """The parts of a cluster policy's peer that the other end does not match."""
    pod, whole = case.peer.pod, RulePart(field, cluster_peer_text(peer))
    if peer.namespaces is not None or peer.pods is not None:
        if pod is None:
            return (Miss(whole, f"{case.peer.name} is no pod", _HOPELESS),)
        if peer.namespaces is not None:
            return tuple(_namespace_misses(case, pod.metadata.namespace, peer.namespaces, f"{field}.namespaces"))
        assert peer.pods is not None, "one of the two is there"
        namespaces = _namespace_misses(
            case, pod.metadata.namespace, peer.pods.namespace_selector, f"{field}.pods.namespaceSelector"
        )
        pods = _terms(peer.pods.pod_selector, f"{field}.pods.podSelector", pod.metadata.labels, "the pod")
        return (*namespaces, *pods)
    if case.direction == INGRESS:
        return (Miss(whole, "that is for egress alone", _HOPELESS),)
    if peer.networks:
        networks = enumerate(peer.networks)
        return (
            min(
                (_network_miss(case.peer.addresses[0], cidr, f"{field}.networks[{n}]") for n, cidr in networks),
                key=_cost,
            ),
        )
    return _node_misses(case, peer, whole)


def _network_miss(address: str, cidr: str, field: str) -> Miss:
    return Miss(RulePart(field, f"networks {cidr}"), f"{address} is not in it", _far(address, cidr))


def _node_misses(case: DirectionCase, peer: ClusterPeer, whole: RulePart) -> tuple[Miss, ...]:
    if case.peer.pod is not None or not case.peer.node:
        return (Miss(whole, f"{case.peer.name} is no node", _HOPELESS),)
    labels = next((n.metadata.labels for n in case.world.nodes if n.metadata.name == case.peer.node), {})
    return tuple(_terms(peer.nodes or LabelSelector(), f"{whole.field}.nodes", labels, f"node {case.peer.node}"))


def _cost(miss: Miss) -> float:
    return miss.cost


def _namespace_misses(case: DirectionCase, namespace: str, selector: LabelSelector, field: str) -> Iterator[Miss]:
    return _terms(selector, field, case.world.labels_of(namespace), f"namespace {namespace}")


def _terms(selector: LabelSelector, field: str, labels: Mapping[str, str], owner: str) -> Iterator[Miss]:
    """The terms of a selector that labels do not satisfy."""
    label_field = field.rpartition(".")[2]
    for term, path in _requirements(selector):
        if not term.matches(dict(labels)):
            have = labels.get(term.key)
            text = f"{owner} has no label {term.key}" if have is None else f"{owner} has {term.key}={have}"
            yield Miss(RulePart(f"{field}.{path}", f"{label_field} {term}"), text, _unlike(term, have))


def _requirements(selector: LabelSelector) -> Iterator[tuple[Requirement, str]]:
    for key, value in sorted(selector.match_labels.items()):
        yield Requirement(key=key, operator="In", values=(value,)), f"matchLabels[{key}]"
    for number, term in enumerate(selector.match_expressions):
        yield term, f"matchExpressions[{number}]"


def _unlike(term: Requirement, have: str | None) -> float:
    return _MISSING if have is None or term.operator != "In" else _cost_of(have, term.values)


def _cost_of(have: str, expected: Iterable[str]) -> float:
    alike = max((SequenceMatcher(None, have, value).ratio() for value in expected), default=0.0)
    return _SLIP if alike >= _ALIKE else _OTHER


def _block_miss(address: str, block: IPBlock, field: str) -> Miss:
    for number, part in enumerate(block.excepted):
        if in_block(address, IPBlock(cidr=part)):
            return Miss(RulePart(f"{field}.except[{number}]", _block_text(block)), f"{address} is in {part}", _SLIP)
    return Miss(RulePart(f"{field}.cidr", _block_text(block)), f"{address} is not in it", _far(address, block.cidr))


def _far(address: str, cidr: str) -> float:
    """The distance of an address from a range: 1 to 2, by the share of the prefix that is equal."""
    try:
        value, network = ip_address(address), ip_network(cidr.strip(), strict=False)
    except ValueError:
        return _HOPELESS
    if value.version != network.version:
        return _HOPELESS
    differing = (int(value) ^ int(network.network_address)).bit_length()
    return 2.0 - min(1.0, (value.max_prefixlen - differing) / max(1, network.prefixlen))


def connection_text(case: DirectionCase) -> str:
    """``TCP 5432``; the protocol alone where it has no ports."""
    port = f" {case.connection.port}" if case.connection.port else ""
    return f"{case.connection.protocol}{port}"


def port_miss(case: DirectionCase, ports: tuple[PolicyPort, ...], field: str) -> Miss:
    """The mismatch of a connection with all ports of a NetworkPolicy's rule."""
    costs = (_port_cost(case, port) for port in ports)
    texts = tuple(port_text(port) for port in ports)
    names = [port.port for port in ports if isinstance(port.port, str)]
    return _ports_miss(case, texts, names, f"{field}.ports", min(costs))


def protocol_miss(case: DirectionCase, protocols: tuple[ClusterProtocol, ...], field: str) -> Miss:
    """The mismatch of a connection with all protocols of a cluster policy's rule."""
    texts = tuple(protocol_text(protocol) for protocol in protocols)
    names = [protocol.destination_named_port for protocol in protocols if protocol.destination_named_port]
    return _ports_miss(case, texts, names, f"{field}.protocols", 1.0)


def _ports_miss(case: DirectionCase, texts: tuple[str, ...], names: Iterable[str], field: str, cost: float) -> Miss:
    place = f"{field}[0]" if len(texts) == 1 else field
    sentences = [f"the connection is {connection_text(case)}", *(_named_port_text(case, name) for name in names)]
    return Miss(RulePart(place, f"ports {', '.join(texts)}"), ", ".join(sentences), cost)


def _port_cost(case: DirectionCase, port: PolicyPort) -> float:
    same = (port.protocol or "TCP") == case.connection.protocol
    if isinstance(port.port, str):
        return _SLIP if same else _OTHER
    first = port.port or 0
    if port.port is None or first <= case.connection.port <= (port.end_port or first):
        return _SLIP  # only the protocol differs
    asked = str(case.connection.port)
    ports = {str(first), str(port.end_port or first)}
    ending = any(text.endswith(asked) or asked.endswith(text) for text in ports)
    cost = _SLIP if ending else _cost_of(asked, ports)
    return cost if same else cost + _SLIP


def _named_port_text(case: DirectionCase, name: str) -> str:
    """The ports of the destination with this name, as text."""
    destination = case.connection.destination
    if destination.pod is None:
        return f"{destination.name} has no named ports"
    numbers = [
        f"{port.protocol or 'TCP'} {port.container_port}"
        for port in destination.pod.declared_ports
        if port.name == name
    ]
    return (
        f"port {name} of {destination.name} is {' and '.join(numbers)}"
        if numbers
        else (f"{destination.name} has no port {name}")
    )

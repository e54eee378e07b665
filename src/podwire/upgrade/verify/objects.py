"""The objects of ``podwire upgrade verify``: pods that answer, a Service, a policy, and what each node tries. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from podwire.model.meta import Fact
from podwire.upgrade import nodepods
from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.verify import checks
from podwire.upgrade.verify.checks import NODE_PORT, PORT, CheckKind, ConnectionCheck

Json = dict[str, Any]
NAME = "podwire-verify"
"""The name of the Service, and of the label of every pod."""
ServerRole = Literal["server", "denied", "observer"]
_OBSERVERS = 2
"""Nodes that have an observer: each node has one on another node."""
_SERVERS = 5
"""Nodes that have a pod that answers; more would make the matrix grow with the square of the cluster."""


class VerifyTargets(Fact, frozen=True, kw_only=True):
    """Where pods of every node try to connect."""

    pods: Mapping[str, str] = {}
    """By node, the address of the pod that answers."""
    service: str = ""
    node_port: int = 0
    nodes: Mapping[str, str] = {}
    """By node, its address; only nodes with a pod that answers."""
    denied: str = ""
    """The address of the pod that a policy isolates."""
    egress: tuple[tuple[str, int], ...] = ()
    observers: Mapping[str, str] = {}
    """By node with a pod in its network that is an observer, the node's address."""
    outside: tuple[tuple[str, int], ...] = ()
    """Observers outside of the cluster."""
    own: Mapping[str, tuple[str, ...]] = {}
    """By node its addresses."""
    sources: tuple[str, ...] = ()
    """The addresses that observers outside must see; empty: those of the node."""
    name: str = ""
    """The name of the Service."""


def server_nodes(nodes: Sequence[str], first: Sequence[str] = ()) -> tuple[str, ...]:
    """The nodes that get a pod that answers: ``first``, then others spread over the rest."""
    rest = [node for node in nodes if node not in first]
    count = max(0, min(_SERVERS - len(first), len(rest)))
    spread = [rest[number * len(rest) // count] for number in range(count)]
    return tuple(dict.fromkeys((*(node for node in first if node in nodes), *spread)))


def server_pod(image: ProbeImage, node: str, role: ServerRole = "server") -> Json:
    """The pod that answers on a node.

    ``denied`` is the one that the policy isolates; ``observer`` answers in the network of the node.
    """
    labels = {"app.kubernetes.io/name": NAME, "role": role}
    port = NODE_PORT if role == "observer" else PORT
    arguments = ["upgrade", "node", "serve", *(["--port", str(port)] if port != PORT else [])]
    pod = nodepods.plain_pod(image, f"{NAME}-{role}-{node}", node, labels, arguments)
    if role == "observer":
        pod["spec"] |= {"hostNetwork": True, "dnsPolicy": "Default"}
    pod["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    return pod


def try_pod(image: ProbeImage, node: str, connections: Sequence[ConnectionCheck]) -> Json:
    """The pod that tries connections from a node."""
    labels = {"app.kubernetes.io/name": NAME, "role": "client"}
    arguments = ["upgrade", "node", "try", checks.encode(connections)]
    return nodepods.plain_pod(image, f"{NAME}-client-{node}", node, labels, arguments)


def service() -> Json:
    """The Service of the pods that answer, with a port on the nodes."""
    ports = [{"name": name.lower(), "port": PORT, "protocol": name} for name in ("TCP", "UDP")]
    labels = {"app.kubernetes.io/name": NAME}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"type": "NodePort", "selector": {**labels, "role": "server"}, "ports": ports},
    }


def policy() -> Json:
    """The policy that denies every connection to the pod with the role ``denied``."""
    labels = {"app.kubernetes.io/name": NAME}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"podSelector": {"matchLabels": {**labels, "role": "denied"}}, "policyTypes": ["Ingress"]},
    }


def observer_nodes(nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that get an observer."""
    return tuple(nodes[:_OBSERVERS])


def connections(targets: VerifyTargets, kinds: Sequence[CheckKind], node: str) -> tuple[ConnectionCheck, ...]:
    """What a node tries."""
    makers = {
        "pod": _pods, "service": _service, "nodeport": _node_ports, "dns": _name, "policy": _denied, "egress": _egress,
    }  # fmt: skip
    checks_of_kinds = [check for kind in kinds if kind in makers for check in makers[kind](targets)]
    return (*checks_of_kinds, *(_source(targets, node) if "egress" in kinds else ()))


def _pods(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    for node, address in sorted(targets.pods.items()):
        yield ConnectionCheck(kind="pod", transport="tcp", target=f"pod on {node}", address=address)
        yield ConnectionCheck(kind="pod", transport="udp", target=f"pod on {node}", address=address)


def _service(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    if targets.service:
        target = f"Service {NAME}"
        yield ConnectionCheck(kind="service", transport="tcp", target=target, address=targets.service)
        yield ConnectionCheck(kind="service", transport="udp", target=target, address=targets.service)


def _node_ports(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    for node, address in sorted(targets.nodes.items()):
        if targets.node_port:
            target = f"port {targets.node_port} of {node}"
            yield ConnectionCheck(kind="nodeport", target=target, address=address, port=targets.node_port)


def _name(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    if targets.name and targets.service:
        name = targets.name
        yield ConnectionCheck(
            kind="dns", transport="name", target=f"name {name}", address=name, expected=targets.service
        )


def _denied(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    if targets.denied:
        yield ConnectionCheck(kind="policy", target="the isolated pod", address=targets.denied, refused=True)


def _egress(targets: VerifyTargets) -> Iterable[ConnectionCheck]:
    for address, port in targets.egress:
        yield ConnectionCheck(kind="egress", target=f"{address} port {port}", address=address, port=port)


def _source(targets: VerifyTargets, node: str) -> Iterable[ConnectionCheck]:
    """Connections to the first observer on another node, since on the own node no address is rewritten, and outside."""
    own = targets.own.get(node, ())
    observers = [(name, address) for name, address in targets.observers.items() if name != node]
    for name, address in observers[:1]:
        target = f"the source address that {name} sees"
        yield ConnectionCheck(
            kind="egress", target=target, address=address, port=NODE_PORT, sources=own, own_source=True
        )
    for address, port in targets.outside:
        target = f"the source address that {address} port {port} sees"
        yield ConnectionCheck(kind="egress", target=target, address=address, port=port, sources=targets.sources or own)

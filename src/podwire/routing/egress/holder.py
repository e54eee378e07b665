"""Which node has the addresses of an EgressPolicy, and which pods leave through it (pure).

Every agent derives the same node from the same objects, without asking the others: of the candidates (Nodes that are
Ready, have the labels and whose agents renew their Lease) the one with the highest hash of policy and node has the
addresses (rendezvous hashing). When a node leaves, only the policies of this node move; when it comes back, they move
back. Cost: one hash for each policy and candidate; one comparison for each policy and pod.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from podwire.cluster.names import NODE_ROUTING
from podwire.errors import ConfigError
from podwire.model.egress import Address, EgressPolicy, EgressScope, Network, read_egress_policy
from podwire.model.node import Node
from podwire.model.pod import Pod

NO_NODE = "NoEgressNode"
INVALID = "Invalid"
ADDRESS_IN_USE = "AddressInUse"
BACKEND = "BackendNotSupported"


class EgressAssignment(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An EgressPolicy with the node that has its addresses.

    ``node`` is empty when none has them, and ``problem`` is the reason then: packets of ``pods`` are dropped.
    """

    name: str
    pods: tuple[str, ...]
    destinations: tuple[Network, ...]
    excluded: tuple[Network, ...]
    addresses: tuple[Address, ...]
    node: str
    reason: str = ""
    problem: str = ""

    def address(self, version: int) -> Address | None:
        """The address of a family, or None."""
        return next((address for address in self.addresses if address.version == version), None)


def rules_of(
    policies: Mapping[str, EgressPolicy], last_good: Mapping[str, EgressScope]
) -> tuple[dict[str, EgressScope], dict[str, str]]:
    """The rules of policies by name, and the problems of those that are wrong.

    A policy that is wrong keeps its rule in ``last_good``, the last good one; without one it has no rule.
    """
    rules, problems = {}, {}
    for name, policy in sorted(policies.items()):
        try:
            rules[name] = read_egress_policy(policy)
        except ConfigError as problem:
            problems[name] = str(problem)
            if name in last_good:
                rules[name] = last_good[name]
    return rules, problems


def known_pods(node: str, pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """The addresses of a node's pods of which it is known whether a policy selects them."""
    known = (pod for pod in pods if pod.spec.node_name == node and pod.metadata.namespace in namespaces)
    return frozenset(address for pod in known if not pod.spec.host_network for address in pod.addresses)


def candidates(rule: EgressScope, nodes: Mapping[str, Node]) -> list[str]:
    """The names of the Ready nodes with the labels of a rule, in order."""
    return sorted(name for name, node in nodes.items() if node.ready and rule.nodes.matches(node.metadata.labels))


def choose_node(policy: str, names: Iterable[str]) -> str:
    """The node that has the addresses of a policy; empty when there is none."""
    return max(names, key=lambda name: hashlib.blake2b(f"{policy}/{name}".encode(), digest_size=8).digest(), default="")


def assign(
    rules: Mapping[str, EgressScope],
    nodes: Mapping[str, Node],
    alive: Collection[str],
    pods: Iterable[Pod],
    namespaces: Mapping[str, Mapping[str, str]],
) -> tuple[EgressAssignment, ...]:
    """The assignments of all rules, in the order of their names, which decides when a packet matches several.

    ``alive`` are the nodes whose agents work; ``namespaces`` the labels of namespaces by name.
    """
    usable = [pod for pod in pods if pod.addresses and not pod.spec.host_network and not pod.finished]
    used = {str(address): f"node {name}" for name, node in nodes.items() for address in node.addresses}
    assignments = []
    for name, rule in sorted(rules.items()):
        node, reason, problem = _node_of(name, rule, nodes, alive)
        owner = next((used[str(address)] for address in rule.addresses if str(address) in used), "")
        if owner:
            node, reason, problem = "", ADDRESS_IN_USE, f"an address of spec.egressIPs is that of {owner}"
        used |= {str(address): f"EgressPolicy {name}" for address in rule.addresses}
        assignments.append(
            EgressAssignment(
                name=name,
                pods=_selected(rule, usable, namespaces),
                destinations=rule.destinations,
                excluded=rule.excluded,
                addresses=rule.addresses,
                node=node,
                reason=reason,
                problem=problem,
            )
        )
    return tuple(assignments)


def _node_of(name: str, rule: EgressScope, nodes: Mapping[str, Node], alive: Collection[str]) -> tuple[str, str, str]:
    """The node, or an empty name, the reason and the problem."""
    ready = candidates(rule, nodes)
    chosen = choose_node(name, (node for node in ready if node in alive))
    if chosen:
        return chosen, "", ""
    labelled = sum(rule.nodes.matches(node.metadata.labels) for node in nodes.values())
    return (
        "",
        NO_NODE,
        f"no node has the address: {labelled} have the labels of spec.nodeSelector, {len(ready)} are Ready",
    )


def unsupported(nodes: Mapping[str, Node], backends: Collection[str]) -> str:
    """Why packets of some nodes cannot be led to another node; ``backends`` are those that can."""
    other_backends = sorted(
        f"{name} ({backend})"
        for name, node in nodes.items()
        if (backend := node.metadata.annotations.get(NODE_ROUTING, "")) and backend not in backends
    )
    if not other_backends:
        return ""
    return (
        f"the routing backend of {', '.join(other_backends[:3])} leads packets to pods alone; "
        f"expected {' or '.join(backends)}"
    )


def _selected(rule: EgressScope, pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The addresses of the pods that a rule selects, in order."""
    chosen = {
        name
        for name, labels in namespaces.items()
        if rule.namespaces.matches({**labels, "kubernetes.io/metadata.name": name})
    }
    return tuple(
        sorted(
            address
            for pod in pods
            if pod.metadata.namespace in chosen and rule.pods.matches(pod.metadata.labels)
            for address in pod.addresses
        )
    )

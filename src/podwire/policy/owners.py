"""The pods and nodes behind addresses, and the pods that selectors match (pure).

Pods with the same labels, as far as selectors mention them, have one entry of the
:class:`~podwire.policy.selectors.SelectorIndex`. The addresses of the entry are kept together, so the pods that a
selector matches are found at the cost of the different labels in the namespaces of the selector.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.cluster.addresses import pod_side_addresses, precedence
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.policy.addressorder import AddressOrder
from podwire.policy.compiled import NamedPort, named_ports
from podwire.policy.selectors import SelectorIndex, SelectorMatches


class PodPeer(msgspec.Struct, frozen=True):
    """The properties of a pod that rules can match."""

    labels: SelectorMatches
    named: tuple[NamedPort, ...]


class AddressOwners:
    """The owners of all addresses."""

    def __init__(self, index: SelectorIndex) -> None:
        self._index = index
        self._pods: dict[str, dict[str, Pod]] = {}
        """By address and key."""
        self._nodes: dict[str, Node] = {}
        self._node_at: dict[str, str] = {}
        self._peers: dict[str, PodPeer] = {}
        self._alike: dict[str, dict[SelectorMatches, dict[str, set[str]]]] = {}
        """The addresses of pods by namespace, labels and family."""
        self._stale: set[str] = set()
        """Addresses of pods that have to be looked up again."""
        self._version = index.version
        self._pods_in_order: dict[int, AddressOrder] = {}
        self._nodes_in_order: dict[int, AddressOrder] = {}
        """By family; made when they are needed first, those of nodes again when addresses of nodes change."""

    # Objects

    def set_pod(self, key: str, before: Pod | None, after: Pod | None) -> None:
        """Takes over a pod that owns its addresses; None: there was no such pod, or it is gone."""
        if before is not None:
            for address in set(before.addresses):
                del self._pods[address][key]
                if not self._pods[address]:
                    del self._pods[address]
                self._forget(address)
        if after is not None:
            for address in after.addresses:
                self._pods.setdefault(address, {})[key] = after
                self._forget(address)

    def set_node(self, name: str, node: Node | None) -> tuple[str, ...]:
        """Takes over a node; returns the addresses that it had or has."""
        old = self._nodes.pop(name, None)
        before = node_addresses(old)
        for address in before:
            if self._node_at.get(address) == name:
                del self._node_at[address]
        if node is not None:
            self._nodes[name] = node
        after = node_addresses(node)
        self._node_at.update(dict.fromkeys(after, name))
        if list(_address_pairs(old)) != list(_address_pairs(node)):
            self._nodes_in_order.clear()
        return (*before, *after)

    def _forget(self, address: str) -> None:
        """Makes the pod of an address be looked up again."""
        self._stale.add(address)
        order = self._pods_in_order.get(_version(address))
        if order is not None:
            order.change(address)
        peer = self._peers.pop(address, None)
        if peer is None:
            return
        alike = self._alike[peer.labels.namespace]
        families = alike[peer.labels]
        families[_family(address)].discard(address)
        if not any(families.values()):
            del alike[peer.labels]
            if not alike:
                del self._alike[peer.labels.namespace]

    def forget(self, pods: Iterable[Pod]) -> None:
        """Looks pods up again, because the index forgot their namespace."""
        for pod in pods:
            for address in pod.addresses:
                self._forget(address)

    def refresh(self) -> None:
        """Looks up what changed since the last call."""
        if self._version != self._index.version:
            self._version = self._index.version
            self._peers.clear()
            self._alike.clear()
            self._stale = set(self._pods)
        for address in self._stale:
            if address in self._pods and address not in self._peers:
                self._look_up(address)
        self._stale.clear()

    def _look_up(self, address: str) -> None:
        pod = self._pod(address)
        assert pod is not None, "the address is a pod's"
        labels = self._index.match(pod.metadata.namespace, pod.metadata.labels)
        self._peers[address] = PodPeer(labels, named_ports(pod.declared_ports))
        families = self._alike.setdefault(labels.namespace, {}).setdefault(labels, {"ip": set(), "ip6": set()})
        families[_family(address)].add(address)

    # Addresses

    def _pod(self, address: str) -> Pod | None:
        """The pod of an address: of several pods, the one that takes precedence."""
        pods = self._pods.get(address)
        return max(pods.values(), key=precedence) if pods else None

    def owner(self, address: str) -> Pod | Node | None:
        """The pod or node that owns an address."""
        return self._pod(address) or self._nodes.get(self._node_at.get(address, ""))

    def pod_peer(self, address: str) -> PodPeer | None:
        """The properties of the pod with an address; None: no pod has it. Valid after :meth:`refresh`."""
        return self._peers.get(address)

    def pods(self) -> Iterable[str]:
        """The addresses of all pods."""
        return self._pods.keys()

    def nodes(self) -> Iterable[str]:
        """The addresses of nodes that no pod has."""
        return self._node_at.keys() - self._pods.keys()

    def all_addresses(self) -> set[str]:
        """All addresses of pods and nodes."""
        return {*self._pods, *self._node_at}

    def within(self, family: int, first: int, last: int) -> Iterator[str]:
        """The addresses of pods and nodes from ``first`` to ``last``, as numbers of a family (4 or 6)."""
        order = self._pods_in_order.get(family)
        if order is None:
            own = ((address, address) for address in self._pods if _version(address) == family)
            order = self._pods_in_order[family] = AddressOrder(own)
        yield from order.within(first, last, self._pods.__contains__)
        yield from self.nodes_within(family, first, last)

    def nodes_within(self, family: int, first: int, last: int) -> list[str]:
        """The addresses of nodes in a range, also those in pod ranges of nodes with another address in the range."""
        order = self._nodes_in_order.get(family)
        if order is None:
            entries = (
                pair for node in self._nodes.values() for pair in _address_pairs(node) if _version(pair[0]) == family
            )
            order = self._nodes_in_order[family] = AddressOrder(entries)
        return order.within(first, last, self._node_at.__contains__)

    def of_node(self, name: str) -> tuple[str, ...]:
        """The addresses of a node."""
        return node_addresses(self._nodes.get(name))

    # Selectors

    def matching(self, selectors: Iterable[int]) -> Iterator[tuple[SelectorMatches, Mapping[str, set[str]]]]:
        """The labels that any of the selectors matches, with the addresses of their pods by family.

        Valid after :meth:`refresh`.
        """
        yielded: set[SelectorMatches] = set()
        for number in selectors:
            selector = self._index.selector(number)
            if selector is None:
                continue
            for namespace in (selector.namespace,) if selector.namespace else tuple(self._alike):
                if not selector.in_namespace(namespace, self._index.labels_of(namespace)):
                    continue
                for labels, families in self._alike.get(namespace, {}).items():
                    if labels not in yielded and selector.pods.matches(labels.labels):
                        yielded.add(labels)
                        yield labels, families

    def addresses_matching(self, selectors: frozenset[int]) -> Iterator[str]:
        """The addresses of the pods that any of the selectors matches."""
        for _, families in self.matching(selectors):
            for addresses in families.values():
                yield from addresses


def node_addresses(node: Node | None) -> tuple[str, ...]:
    """All addresses that a node owns."""
    return (*node.addresses, *pod_side_addresses(node)) if node is not None else ()


def _address_pairs(node: Node | None) -> Iterator[tuple[str, str]]:
    """The addresses of a node, each with the addresses by which blocks match it."""
    yield from ((address, address) for address in node_addresses(node))
    for address, known in pod_side_addresses(node).items() if node is not None else ():
        yield from ((address, place) for place in known)


def _version(address: str) -> int:
    return 6 if ":" in address else 4


def _family(address: str) -> str:
    return "ip6" if ":" in address else "ip"

"""Who is behind the addresses of peers, as the rules of policies see it (pure)."""

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from podwire.cluster.addresses import pod_side_addresses
from podwire.model.node import Node
from podwire.policy.compiled import NamedPort
from podwire.policy.owners import AddressOwners
from podwire.policy.rules import node_selector
from podwire.policy.selectors import SelectorIndex


class PeerMatch(msgspec.Struct, frozen=True, kw_only=True):
    """Which selectors match the owner of an address."""

    address: str
    selectors: frozenset[int] = frozenset()
    """The selectors that match the pod behind it."""
    named: tuple[NamedPort, ...] = ()
    nodes: frozenset[str] = frozenset()
    """The selectors of nodes, in their JSON form, that match the node whose own address it is."""
    node_addresses: tuple[str, ...] = ()
    """For a node's address in its own pod range: the addresses in its Node status, which blocks match instead."""
    own_node: bool = False
    """Whether the address belongs to the node that the pods of the profile run on."""


AlikePods = tuple[frozenset[int], Mapping[str, Collection[str]]]
"""Selectors that match some pods, and the addresses of these pods by family."""


class PeerIndex:
    """The peers of one node's pods; valid after :meth:`AddressOwners.refresh`."""

    def __init__(
        self, owners: AddressOwners, index: SelectorIndex, node: str, node_selectors: Callable[[], Collection[str]]
    ) -> None:
        """``node_selectors`` returns the selectors of nodes in all rules, in their JSON form."""
        self._owners = owners
        self._index = index
        self._node = node
        self._node_selectors = node_selectors

    def at(self, address: str) -> PeerMatch | None:
        """The selectors, named ports and node that match an address; None: no pod or node owns it."""
        pod = self._owners.pod_peer(address)
        if pod is not None:
            return PeerMatch(address=address, selectors=self._index.numbers(pod.labels), named=pod.named)
        node = self._owners.owner(address)
        if not isinstance(node, Node):
            return None
        labels, known = node.metadata.labels, pod_side_addresses(node).get(address, ())
        matching = (text for text in self._node_selectors() if node_selector(text).matches(labels))
        own_node = node.metadata.name == self._node
        return PeerMatch(address=address, nodes=frozenset(matching), own_node=own_node, node_addresses=known)

    def alike(self, selectors: Collection[int] | None) -> Iterator[AlikePods]:
        """The pods that any of the selectors matches, those with the same labels together; None: all pods."""
        found = self._owners.all_pods() if selectors is None else self._owners.matching(selectors)
        for labels, addresses in found:
            yield self._index.numbers(labels), addresses

    def matching(self, selectors: Collection[int]) -> Iterator[str]:
        """The addresses of the pods that any of the selectors matches."""
        for _, families in self._owners.matching(selectors):
            for addresses in families.values():
                yield from addresses

    def pods(self) -> Collection[str]:
        """The addresses of all pods."""
        return self._owners.pods()

    def named(self, address: str) -> tuple[NamedPort, ...]:
        """The named ports of the pod with an address; none if no pod has it."""
        pod = self._owners.pod_peer(address)
        return pod.named if pod is not None else ()

    def nodes(self) -> Collection[str]:
        """The addresses of nodes."""
        return self._owners.nodes()

    def within(self, family: int, first: int, last: int) -> list[str]:
        """The addresses of pods and nodes in a range."""
        return self._owners.within(family, first, last)

    def of_nodes(self, addresses: Collection[str]) -> set[str]:
        """Of these addresses those of nodes, and the addresses in pod ranges of the same nodes."""
        found: set[str] = set()
        for address in addresses:
            if self._owners.is_node(address):
                node = self._owners.owner(address)
                found.update((address, *(pod_side_addresses(node) if isinstance(node, Node) else ())))
        return found

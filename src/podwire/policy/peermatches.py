"""Finds the selectors, named ports and node that match an address (pure)."""

from collections.abc import Mapping

from podwire.cluster.addresses import pod_side_addresses
from podwire.model.node import Node
from podwire.policy.compiled import CompiledPolicy
from podwire.policy.owners import AddressOwners
from podwire.policy.profile import PeerMatch
from podwire.policy.rules import node_selector
from podwire.policy.selectors import SelectorIndex


class PeerMatcher:
    """Matches the owners of addresses with the selectors of policies, as seen from one node."""

    def __init__(
        self,
        node: str,
        owners: AddressOwners,
        index: SelectorIndex,
        policies: Mapping[tuple[str, str], CompiledPolicy],
    ) -> None:
        self._node = node
        self._owners = owners
        self._index = index
        self._policies = policies

    def known(self, address: str, peers: dict[str, PeerMatch | None]) -> PeerMatch | None:
        """The result of :meth:`peer`, computed once for all profiles of a flush."""
        if address not in peers:
            peers[address] = self.peer(address)
        return peers[address]

    def peer(self, address: str) -> PeerMatch | None:
        """The selectors, named ports and node that match an address; None: no pod or node owns it."""
        self._owners.refresh()
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

    def _node_selectors(self) -> set[str]:
        cluster = (policy for (kind, _), policy in self._policies.items() if kind == "Cluster")
        return {text for policy in cluster for rules in policy.rules.values() for rule in rules for text in rule.nodes}

"""The objects that policies depend on: their sources, and how changes reach the compiler."""

from collections.abc import Callable

import msgspec

from podwire.cluster.cloudinterfaces import pod_ranges_of
from podwire.cluster.lentaddresses import LentAddresses
from podwire.cluster.ranges import ClusterRanges
from podwire.dataplane.follower import Source
from podwire.model.meta import Object
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.status.digest import same


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the objects that policies depend on."""

    pods: Source[Pod]
    namespaces: Source[Object]
    nodes: Source[Node]
    policies: Source[NetworkPolicy]
    cluster_policies: Source[ClusterNetworkPolicy]

    async def synced(self) -> None:
        """Waits until the objects of all sources are known."""
        for source in (self.pods, self.namespaces, self.nodes, self.policies, self.cluster_policies):
            await source.synced.wait()


class ObjectFeed:
    """Passes changed namespaces, nodes and policies to a compiler.

    ``changed`` is called with the kind and the key of each changed object, pods included; ``own_node`` is called with
    the Node of this node. Changes that policies do not depend on are ignored.
    """

    def __init__(
        self,
        sources: Sources,
        compiler: Compiler,
        changed: Callable[[str, str], None],
        own_node: Callable[[Node], None],
    ) -> None:
        self._sources = sources
        self._compiler = compiler
        self._changed = changed
        self._own_node = own_node
        self._subscribed = False
        self.ranges = ClusterRanges()
        """The pod ranges of the cluster."""
        self._lent = LentAddresses()
        self._own: Node | None = None

    def subscribe(self) -> None:
        """Follows the objects from now on; a second call does nothing."""
        if self._subscribed:
            return
        self._subscribed = True
        sources = self._sources
        sources.pods.subscribe(self._pod_changed)
        sources.namespaces.subscribe(self._namespace_changed)
        sources.nodes.subscribe(self._node_changed)
        sources.policies.subscribe(self._policy_changed)
        sources.cluster_policies.subscribe(self._cluster_policy_changed)

    def _pod_changed(self, key: str, _old: Pod | None, _new: Pod | None) -> None:
        self._changed("Pod", key)

    def _namespace_changed(self, key: str, _old: Object | None, new: Object | None) -> None:
        self._compiler.set_namespace(key, new.metadata.labels if new is not None else None)
        self._changed("Namespace", key)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _alike(old, new):
            return  # a Node reports its status all the time
        self._compiler.set_node(key, new)
        self.ranges.follow(key, new)
        is_lent = self._lent.follow(key, new)
        if key == self._compiler.node and new is not None:
            self._own = new
            self._own_node(new)
        elif is_lent and self._own is not None:
            self._own_node(self._own)
        self._changed("Node", key)

    def pod_ranges(self, own: Node) -> tuple[str, ...]:
        """The ranges of the pods of this node, whose Node is ``own``, without addresses that other nodes borrow."""
        return tuple(map(str, self._lent.outside(own.metadata.name, pod_ranges_of(own))))

    def _policy_changed(self, key: str, old: NetworkPolicy | None, new: NetworkPolicy | None) -> None:
        if old is not None and new is not None and same(old, new):
            return  # only metadata or status changed
        self._compiler.set_policy(key, new)
        self._changed("NetworkPolicy", key)

    def _cluster_policy_changed(
        self, key: str, old: ClusterNetworkPolicy | None, new: ClusterNetworkPolicy | None
    ) -> None:
        if old is not None and new is not None and same(old, new):
            return
        self._compiler.set_cluster_policy(key, new)
        self._changed("ClusterNetworkPolicy", key)


def _alike(old: Node, new: Node) -> bool:
    """Whether two versions of a Node are equal in the fields that policies depend on."""

    def read(node: Node) -> tuple[object, ...]:
        return node.metadata.labels, node.status.addresses, pod_ranges_of(node)

    return read(old) == read(new)

"""The interface of a routing backend, and the value that it plans.

A backend computes from this node and the peers that it should reach the whole state that the node needs; a backend
itself never adds or removes anything. A plan without peers is the state for receiving from other nodes. Everything
specific to a backend (options, announced facts, guard rules, child processes) is in the backend's folder; only
``routing.registry`` names the backend.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from podwire.cluster.podleg import PodLeg
from podwire.cluster.podnetworks import NodePodNetwork
from podwire.errors import ConfigError
from podwire.routing.nodes import ClusterView, LocalNode, Network, NodeKey, Peer
from podwire.routing.podnetworks import PodNetworks
from podwire.runtime.program import Child
from podwire.state.network import NetworkState
from podwire.state.value import StateValue

CARRIER_NICENESS = -10
"""The priority of programs that packets of pods pass, as in ovs-ctl: without it their queues fill on a busy machine."""


class BackendOptions(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The options of one backend; a subclass has a field for each.

    The fields are keys of the section ``routing``, side by side with those of every other backend. A new backend
    therefore has one field with the backend's own name, whose type is a struct with the options.
    """

    encrypts: ClassVar[bool] = False
    """Whether packets to peers are encrypted. A node that is configured with such a backend uses no other one."""

    routes_outside: ClassVar[bool] = False
    """Whether the backend's route to a peer also leads packets to addresses outside the cluster there."""

    def check(self, source: str) -> None:
        """Checks values beyond their types.

        Raises: ConfigError naming the source and the field.
        """

    @property
    def pod_networks(self) -> PodNetworks:
        """The pod networks besides the default one. They are separate with every backend that a node uses."""
        return PodNetworks()

    def shown(self) -> Mapping[str, Any]:
        """The options by their keys, as logs show them: a backend with secrets leaves these out."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class BackendPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one backend needs on this node.

    ``network`` are the objects of ip(8). ``values`` are of any other kinds of ``state.kinds``; nftables tables among
    them are of the family inet, and each is listed in the backend's ``tables``. ``children`` are the programs that run
    beside the agent, with their files below ``LocalNode.run_dir``. ``tunnels`` are the devices whose address the node's
    own packets take when they enter the tunnel.
    ``program_values`` are held by the child processes instead of the kernel: they are applied when the processes run.
    ``configured`` is in force only on nodes that are configured with the backend, not on those that merely receive.
    ``unmasqueraded`` are destinations that see the pods' own addresses, besides pods and nodes of the same subnet.
    ``ready_by_controller``: a controller, and not the agent, says that the node's network is ready
    (``NetworkUnavailable``). ``leg`` is the second interface of the node's pods; None: they have one interface.
    ``degraded`` is what the backend does otherwise than configured, and why; empty when it does nothing otherwise.
    ``pod_networks`` are those from which pods of the node may choose, with the default one; empty: there is no choice.
    """

    network: NetworkState = NetworkState()
    values: tuple[StateValue, ...] = ()
    children: tuple[Child, ...] = ()
    tunnels: tuple[str, ...] = ()
    program_values: tuple[StateValue, ...] = ()
    configured: NetworkState = NetworkState()
    unmasqueraded: tuple[Network, ...] = ()
    ready_by_controller: bool = False
    leg: PodLeg | None = None
    degraded: str = ""
    pod_networks: tuple[NodePodNetwork, ...] = ()


class Backend(Protocol):
    """One way to carry packets between nodes."""

    name: str
    feature: str
    """The kernel feature that the backend needs, as in ``kernel.features``; empty: every kernel can run the backend."""
    options: type[BackendOptions]
    tables: tuple[str, ...]
    """The names of all nftables tables (family inet) that a plan may have; those that a plan lacks are deleted."""
    announced: bool
    """Whether peers send to this node only after the node has announced that it can receive from this backend."""
    crosses_routers: bool
    """Whether routers between two nodes need no routes to pods."""

    def __init__(self, options: Any) -> None: ...

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The ports at which nodes decapsulate packets of pods without authentication; pods may not send to them."""
        ...

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """Facts of this node for its peers: keys of the JSON object that a node announces (``nodes.Facts.details``).

        A new backend has one key, the backend's own name.
        """
        ...

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The state that sends packets to ``peers`` and receives from all nodes of ``cluster``."""
        ...

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Empty when packets can be sent to ``peer``, else the reason why not."""
        ...

    def overhead(self, me: LocalNode) -> int:
        """Bytes that encapsulation adds to a packet."""
        ...


@runtime_checkable
class KeyHolder(Protocol):
    """A backend that needs key pairs, which the node keeps over restarts."""

    def key_names(self, nodes: Sequence[Peer | LocalNode]) -> Sequence[str]:
        """The names of the key pairs that are needed now, by what all nodes have announced; others are deleted.

        The router makes missing ones, and hands all to ``announce``, ``plan`` and ``reaches`` in ``LocalNode.keys``
        below the name of the backend. A node on which the backend is not in use has none there.
        """
        ...

    def announced_keys(self, node: LocalNode) -> Mapping[str, NodeKey]:
        """The key pairs of a node as far as it has announced them: without their files."""
        ...


@runtime_checkable
class SessionHolder(Protocol):
    """A backend whose first packets to a peer wait until a session with the peer exists."""

    def has_session(self, me: LocalNode, peer: Peer) -> bool:
        """Whether a session with the peer exists, by ``LocalNode.sessions``."""
        ...


@runtime_checkable
class RouteLearner(Protocol):
    """A backend whose program writes routes to some peers, when it has learned them from others."""

    @staticmethod
    def route_protocol() -> int:
        """The protocol of these routes (rtm_protocol)."""
        ...

    def has_routes(self, me: LocalNode, peer: Peer) -> bool:
        """Whether all routes to the peer are there, by ``LocalNode.learned``."""
        ...


@runtime_checkable
class FeatureUser(Protocol):
    """A backend whose plan depends on features of the kernel beyond the one that it needs."""

    features: tuple[str, ...]
    """Names of ``kernel.features``; the router hands those that the kernel has to ``plan`` in ``LocalNode.features``
    while the backend is in use."""


@runtime_checkable
class ConfiguredByObjects(Protocol):
    """A backend that API objects of its own configure; ``follower.FOLLOWERS`` has the class that follows them."""

    def take_objects(self, objects: Any) -> None:
        """Sets what the objects say; called before every other method. Until then there are no objects."""
        ...


def check_range(source: str, path: str, value: int, low: int, high: int) -> None:
    """Checks a number of a configuration.

    Raises: ConfigError when the number is not in ``low``..``high``.
    """
    if not low <= value <= high:
        raise ConfigError(source, path, f"{value} is not in {low}..{high}")

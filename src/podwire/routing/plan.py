"""Chooses the backend for each peer, and computes the whole kernel state.

A cluster changes its backend node by node, and both directions must work all the time. So a node sends with its
configured backend only to peers that can receive from it, and with another backend to the others; and it stays able to
receive from every backend that a peer still announces. The route to a pod CIDR has one key in all backends: a switch
replaces it in place, so no packet finds it missing. Devices are removed with the first plan in which no peer needs
them.

:class:`Planner` keeps what follows from each peer, so a plan for one other peer costs 2-3 us for each peer that is the
same, and a plan for unchanged peers nothing. It is the same plan as that of :func:`plan`, which keeps nothing.

A node that is configured with a backend that encrypts sends by no other backend, except during a switch: then packets
to a peer take the backend of the last plan until the peer can receive from the configured one, and a session exists. A
node announces the backends by which it still sends, so that its peers keep their devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from podwire.cluster.podleg import PodLeg
from podwire.cluster.podnetworks import FACT as NETWORKS_FACT
from podwire.cluster.podnetworks import NodePodNetwork
from podwire.routing.backend import Backend, BackendPlan, KeyHolder, RouteLearner, SessionHolder
from podwire.routing.clustersets import ClusterUnions, with_unmasqueraded
from podwire.routing.masquerade import masquerade_rulesets, masquerade_scopes
from podwire.routing.mtu import FACT as MTU_FACT
from podwire.routing.mtu import NarrowPeers, headers, pod_mtus, with_path_mtus
from podwire.routing.neighbours import neighbour_limits
from podwire.routing.networks import ClusterSets, Network
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts
from podwire.routing.peerstates import PeerResults
from podwire.routing.podnetworks import separation
from podwire.routing.probes import ProbeBasis, ProbeTarget, offloads, probe_targets, tunnel_devices
from podwire.routing.registry import PLAIN
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import masquerade_table
from podwire.runtime.program import Child
from podwire.state.network import NetworkState, merge
from podwire.state.route import Route, Sysctl
from podwire.state.value import StateValue


class Problem(msgspec.Struct, frozen=True, gc=False, order=True):
    """A peer that cannot be reached, and the reason."""

    peer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.peer}: {self.reason}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The routing state of one node, and the facts to announce.

    ``state``, ``values`` and ``children`` are those of all backends in use, together with what every node needs.
    ``program_values`` are held by the children. ``facts`` are announced after all of it is applied, ``senders`` names
    the backend used for each peer. ``sets`` are the pod networks of the cluster and the addresses of its nodes.
    ``pod_mtus`` are the MTUs of pods in bytes, by family; ``probes`` is what the self-test needs. ``pod_networks`` are
    those from which pods may choose.
    """

    state: NetworkState
    values: tuple[StateValue, ...] = ()
    children: tuple[Child, ...] = ()
    program_values: tuple[StateValue, ...] = ()
    facts: RoutingFacts
    pod_mtus: Mapping[int, int]
    ready_by_controller: bool = False
    leg: PodLeg | None = None
    degraded: str = ""
    pod_networks: tuple[NodePodNetwork, ...] = ()
    sets: ClusterSets
    senders: dict[str, str]
    probes: ProbeBasis | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def inside(self) -> tuple[Network, ...]:
        """All pod networks of the cluster, and the addresses of all nodes."""
        return self.sets.inside

    @property
    def targets(self) -> tuple[ProbeTarget, ...]:
        """The paths that the self-test tests, made at each call."""
        return tuple(probe_targets(self.probes, self.pod_mtus)) if self.probes is not None else ()

    @property
    def pod_mtu(self) -> int:
        """The MTU of pods' devices in bytes: that of the family with the larger packets."""
        return max(self.pod_mtus.values())


def plan(
    me: LocalNode,
    peers: Iterable[Peer],
    settings: RoutingSettings,
    backends: Mapping[str, Backend],
    cidrs: Iterable[Network] = (),
    *,
    former: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of this node for all peers, in the order of their names.

    ``backends`` are all that this kernel can run, by name, and the configured one; ``cidrs`` the configured pod
    networks of the cluster. ``former`` are the backends of the last plan by peer during a switch, else None. During a
    switch to a backend that encrypts, packets to peers that announce another backend take that one until they can take
    the configured one.
    """
    return Planner({}).plan(me, tuple(peers), settings, backends, tuple(cidrs), former=former)


class Planner:
    """Makes plans, and keeps what the next one may need.

    ``objects`` are what the API objects of backends say, by backend; ``backends`` follow from these and the settings.
    """

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self._inputs: tuple[object, ...] = ()
        self._plan: Plan | None = None
        self._unions = ClusterUnions()
        self._choices = PeerResults[tuple[str, str]]()
        self._narrow = NarrowPeers()

    def plan(
        self,
        me: LocalNode,
        peers: Sequence[Peer],
        settings: RoutingSettings,
        backends: Mapping[str, Backend],
        cidrs: Sequence[Network],
        *,
        former: Mapping[str, str] | None,
    ) -> Plan:
        """As :func:`plan`; returns the last plan again while its inputs are the same."""
        inputs = (me, tuple(peers), settings, set(backends), tuple(cidrs), former, dict(self._objects))
        if self._plan is None or inputs != self._inputs:
            ordered = tuple(sorted(peers, key=attrgetter("name")))
            sets = self._unions.take(me, ordered, (*cidrs, *settings.pod_networks.ranges), settings.exceptions)
            cluster = ClusterView(ordered, sets.pod_networks, sets, tuple(cidrs))
            fallback = former is not None or not backends[settings.backend].options.encrypts
            basis = (me, settings, set(backends), fallback, former, dict(self._objects))
            before = former or {}

            def choice(peer: Peer) -> tuple[str, str]:
                if not (peer.pod_cidrs and peer.addresses):
                    return "", ""
                return choose(me, peer, settings, backends, fallback=fallback, former=before.get(peer.name, ""))

            choices = self._choices.take(ordered, basis, choice)
            self._plan = _assembled(me, settings, backends, cluster, choices, self._narrow.take(me, ordered))
            self._inputs = inputs
        return self._plan


def _assembled(
    me: LocalNode,
    settings: RoutingSettings,
    backends: Mapping[str, Backend],
    cluster: ClusterView,
    choices: Mapping[str, tuple[str, str]],
    narrow: Mapping[str, Peer],
) -> Plan:
    """The plan for the peers of ``cluster``; ``narrow`` are those with a narrower path.

    ``choices`` has the backend for each peer and an empty reason, or why no backend reaches the peer.
    """
    sets = cluster.sets
    assert sets is not None, "the caller makes them"
    assigned: dict[str, list[Peer]] = {name: [] for name in backends}
    for peer in cluster.peers:
        if name := choices[peer.name][0]:
            assigned[name].append(peer)
    receiving = in_use((*cluster.peers, me), settings.backend)
    used = {name: backend for name, backend in backends.items() if assigned[name] or name in receiving}
    by_name = {name: backend.plan(me, assigned[name], cluster) for name, backend in used.items()}
    plans = list(by_name.values())
    leg = _leg_backend(me, by_name, settings.backend)
    values = [value for backend_plan in plans for value in backend_plan.values]
    if settings.masquerade:
        tunnels = tuple(device for backend_plan in plans for device in backend_plan.tunnels)
        unmasqueraded = [network for backend_plan in plans for network in backend_plan.unmasqueraded]
        values[:0] = _masquerade(with_unmasqueraded(sets, unmasqueraded), settings, tunnels)
    values += offloads(me, settings, (link for backend_plan in plans for link in backend_plan.network.links))
    states = [
        _common(me),
        neighbour_limits(me, len(cluster.peers)),
        *(backend_plan.network for backend_plan in plans),
        by_name[settings.backend].configured,
        separation(settings.pod_networks, cluster.cluster_cidrs),
    ]
    announcing = [backend for name, backend in used.items() if name == leg or by_name[name].leg is None]
    added = headers(me, backends)
    senders = {peer.name: name for name, members in assigned.items() for peer in members}
    return Plan(
        state=with_path_mtus(merge(states), me, added, senders, narrow),
        values=tuple(values),
        children=tuple(child for backend_plan in plans for child in backend_plan.children),
        program_values=tuple(value for backend_plan in plans for value in backend_plan.program_values),
        facts=RoutingFacts(
            backend=settings.backend,
            receives=tuple(sorted(name for name, backend in backends.items() if _receives(me, backend, used))),
            details=_announced(me, announcing, by_name[settings.backend].pod_networks),
            sends=_others_in_use(assigned, settings.backend, backends),
        ),
        pod_mtus=pod_mtus(me, settings, added, senders, narrow),
        probes=ProbeBasis(me=me, peers=cluster.peers, senders=senders, headers=added, tunnels=tunnel_devices(by_name)),
        ready_by_controller=by_name[settings.backend].ready_by_controller,
        leg=by_name[leg].leg if leg else None,
        degraded=by_name[settings.backend].degraded,
        pod_networks=by_name[settings.backend].pod_networks,
        sets=sets,
        senders=senders,
        problems=tuple(Problem(*entry) for entry in sorted((name, why) for name, (_, why) in choices.items() if why)),
    )


def _others_in_use(
    assigned: Mapping[str, Sequence[Peer]], configured: str, backends: Mapping[str, Backend]
) -> tuple[str, ...]:
    """The backends besides the configured one that send to peers, and that those peers have announced."""
    names = (name for name, peers in sorted(assigned.items()) if peers)
    return tuple(name for name in names if name != configured and backends[name].announced)


def _announced(me: LocalNode, backends: Sequence[Backend], networks: Sequence[NodePodNetwork]) -> dict[str, Any]:
    """The details that a node announces: the MTU of its device, the facts of its backends, its pod networks."""
    details: dict[str, Any] = {MTU_FACT: me.underlay.device_mtu}
    for backend in backends:
        details |= backend.announce(me)
    return details | ({NETWORKS_FACT: msgspec.to_builtins(networks)} if networks else {})


def _leg_backend(me: LocalNode, plans: Mapping[str, BackendPlan], configured: str) -> str:
    """The backend whose leg pods have; empty: they have none.

    A pod has one leg. An announced leg stays until no node uses its backend, because peers send to it.
    """
    legs = [name for name, backend_plan in plans.items() if backend_plan.leg is not None]
    announced = [name for name in legs if me.facts is not None and name in me.facts.details]
    return next(iter((*announced, *(name for name in legs if name == configured), *legs)), "")


def _masquerade(sets: ClusterSets, settings: RoutingSettings, tunnels: Sequence[str]) -> tuple[StateValue, ...]:
    scopes = masquerade_scopes(sets, tunnels)
    if settings.masquerade_rules == "iptables":
        return masquerade_rulesets(scopes)
    return (masquerade_table(scopes),)


def staged(before: NetworkState, desired: NetworkState) -> NetworkState:
    """The state for the time until the child processes hold their values: new devices, and the routes of ``before``.

    The new devices have their neighbours and forwarding entries already, because peers may send to them from now on.
    """
    names = {link.name for link in desired.links}
    return NetworkState(
        links=(*desired.links, *(link for link in before.links if link.name not in names)),
        addresses=tuple(dict.fromkeys((*desired.addresses, *before.addresses))),
        routes=before.routes,
        neighbours=tuple({entry.key: entry for entry in (*desired.neighbours, *before.neighbours)}.values()),
        fdb=tuple({entry.key: entry for entry in (*desired.fdb, *before.fdb)}.values()),
        rules=before.rules,
        sysctls=tuple({sysctl.path: sysctl for sysctl in (*before.sysctls, *desired.sysctls)}.values()),
    )


def _receives(me: LocalNode, backend: Backend, used: Mapping[str, Backend]) -> bool:
    """Whether peers may send by a backend."""
    if isinstance(backend, KeyHolder) and not me.keys.get(backend.name):
        return False
    return backend.name in used or not backend.announced


def choose(
    me: LocalNode,
    peer: Peer,
    settings: RoutingSettings,
    backends: Mapping[str, Backend],
    *,
    fallback: bool = True,
    former: str = "",
) -> tuple[str, str]:
    """The backend that sends to a peer, and an empty reason; or why no backend can.

    The configured backend comes first (plain routes before it, when direct routing is configured); other backends are
    used only when the peer announces that it does not have the new configuration yet, and only with ``fallback``.
    ``former`` is the backend of the last plan during a switch: it stays until the configured one has a session, or the
    routes that its program learns.
    """
    configured = backends[settings.backend]
    if former != settings.backend and former in backends and not configured.reaches(me, peer):
        waits = isinstance(configured, SessionHolder) and not configured.has_session(me, peer)
        waits = waits or (isinstance(configured, RouteLearner) and not configured.has_routes(me, peer))
        if waits and not backends[former].reaches(me, peer):
            return former, ""
    order = [settings.backend]
    if settings.direct_routing:
        order.insert(0, PLAIN)
    if fallback and peer.facts is not None and peer.facts.backend != settings.backend:
        order += [name for name in peer.facts.receives if name in backends]
    refusals: dict[str, str] = {}
    for name in order:
        refusals[name] = backends[name].reaches(me, peer)
        if not refusals[name]:
            return name, ""
    return "", refusals[settings.backend]


def in_use(nodes: Iterable[Peer | LocalNode], configured: str) -> set[str]:
    """The backends from which this node receives: its own, and those that peers announce.

    The one that this node itself announced last stays until the new announcement is known, so that no packet on its way
    through a device is lost.
    """
    used = {configured}
    for node in nodes:
        if (facts := node.facts) is not None:
            used.add(facts.backend)
            if facts.sends:
                used.update(facts.sends)
    return used


def _common(me: LocalNode) -> NetworkState:
    routes = tuple(Route(dst=str(cidr), kind="unreachable", metric=4096) for cidr in me.pod_cidrs)
    families = {cidr.version for cidr in me.pod_cidrs}
    sysctls = []
    if 4 in families:
        sysctls.append(Sysctl(path="net/ipv4/ip_forward", value="1"))
        sysctls.append(Sysctl(path=f"net/ipv4/conf/{me.underlay.link}/rp_filter", value="2"))
    if 6 in families:
        sysctls.append(Sysctl(path="net/ipv6/conf/all/forwarding", value="1"))
    return NetworkState(routes=routes, sysctls=tuple(sysctls))

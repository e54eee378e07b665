"""The EgressPolicies of a cluster as one process knows them: which nodes are alive, and the assignments.

The agent of each node that an EgressPolicy selects renews a Lease (``kube-system/podwire-egress-NODE``) every
:data:`RENEW_S`. A node whose Lease was not renewed for :data:`EXPIRY_S` is not alive, long before the API server says
NotReady. Each process measures by its own clock, from the moment at which it observed a renewal; a Lease that was
renewed more than :data:`OLD_S` ago when it is first read is expired at once.

While this process has no connection to the API, and while no Lease at all is renewed (the API does not take writes),
the nodes that were alive last stay so: an API server that is away moves no address.
"""

import datetime
from collections.abc import Iterable, Mapping

from podwire.cluster.names import EGRESS_LEASE
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import EGRESSPOLICIES, LEASES
from podwire.model.egress import EgressPolicy, EgressScope
from podwire.model.node import Lease, Node
from podwire.model.pod import Pod
from podwire.routing.egress.holder import EgressAssignment, assign, candidates, rules_of
from podwire.runtime.clock import Clock, parse_rfc3339

NAMESPACE = "kube-system"
LEASE_PREFIX = "podwire-egress-"
RENEW_S = 1.0
EXPIRY_S = 3.0
OLD_S = 10.0


class Liveness:
    """Which nodes renew their Lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed: dict[str, tuple[str, float]] = {}
        """The last renewal by node, and when it was observed."""
        self._alive: frozenset[str] = frozenset()

    def observe(self, node: str, renewed: str | None) -> None:
        """Takes over the time of renewal in a node's Lease; None: the Lease is gone."""
        if renewed is None:
            self._renewed.pop(node, None)
            return
        known = self._renewed.get(node)
        if known is None or not known[0]:
            at = self._clock.monotonic() - (EXPIRY_S if self._is_old(renewed) else 0.0)
            self._renewed[node] = (renewed, at)
        elif known[0] != renewed:
            self._renewed[node] = (renewed, self._clock.monotonic())

    def expect(self, node: str) -> None:
        """Treats a candidate as alive until its first Lease is read, or until the usual time has passed without one."""
        self._renewed.setdefault(node, ("", self._clock.monotonic()))

    def _is_old(self, renewed: str) -> bool:
        try:
            age = self._clock.now() - parse_rfc3339(renewed)
        except ValueError:
            return True
        return age > datetime.timedelta(seconds=OLD_S)

    def alive(self, *, connected: bool) -> frozenset[str]:
        """The nodes that are alive; with ``connected`` false those that were alive last."""
        limit = self._clock.monotonic() - EXPIRY_S
        fresh = frozenset(node for node, (_, at) in self._renewed.items() if at > limit)
        if connected and fresh:
            self._alive = fresh
        return self._alive


class EgressView:
    """The policies, the Leases, and what follows from them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.policies: Informer[EgressPolicy] = Informer(client, EGRESSPOLICIES)
        self.leases: Informer[Lease] = Informer(client, LEASES, namespace=NAMESPACE, label_selector=EGRESS_LEASE)
        self.liveness = Liveness(client.clock)
        self.rules: Mapping[str, EgressScope] = {}
        self.problems: Mapping[str, str] = {}
        """Why a policy is wrong, by its name; its last good rule stays."""
        self.policies.subscribe(lambda *_: self._read())
        self.leases.subscribe(self._renewed)

    def _read(self) -> None:
        self.rules, self.problems = rules_of(self.policies.objects, self.rules)

    def _renewed(self, _key: str, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is not None:
            node = lease.metadata.name.removeprefix(LEASE_PREFIX)
            self.liveness.observe(node, (new.spec.renew_time or "") if new is not None else None)

    def is_candidate(self, node: str, nodes: Mapping[str, Node]) -> bool:
        """Whether a node may have the addresses of a policy."""
        return any(node in candidates(rule, nodes) for rule in self.rules.values())

    def assignments(
        self, nodes: Mapping[str, Node], pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]
    ) -> tuple[EgressAssignment, ...]:
        """The assignments as they follow from the objects now."""
        if not self.rules:
            return ()
        for rule in self.rules.values():
            for name in candidates(rule, nodes):
                self.liveness.expect(name)
        alive = self.liveness.alive(connected=self.leases.connected)
        return assign(self.rules, nodes, alive, pods, namespaces)

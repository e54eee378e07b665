"""Whether the proxy works, and the answers that say so: ``/healthz``, ``/livez``, healthCheckNodePort.

The proxy is healthy unless a change waits for longer than a minute without a successful commit; it is while it starts
and while nothing changes. ``/livez`` says just that, for whoever restarts it. ``/healthz`` is what a cloud's load
balancer asks before it sends new connections to the node: it also fails once the node is about to go (deleted, being
deleted, or tainted by the cluster autoscaler), or is not known yet. A healthCheckNodePort says whether this node has a
ready endpoint of its Service, to a load balancer that shall skip nodes without one. Bodies, headers and rules are
kube-proxy's (pkg/proxy/healthcheck), so that dashboards and load balancers need no change.
"""

import datetime

import msgspec

from podwire.http.message import Response
from podwire.model.node import Node
from podwire.runtime.clock import Clock, rfc3339_micro

PATIENCE_S = 60.0
"""How long a change may wait: twice kube-proxy's default ``syncPeriod``."""
AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"

_NOSNIFF = ("X-Content-Type-Options", "nosniff")


class Pulse:
    """When something changed, and when it was last programmed."""

    def __init__(self, clock: Clock, families: tuple[str, ...] = ("IPv4", "IPv6")) -> None:
        self._clock = clock
        self._families = families
        self._waiting_since: float | None = None
        self._committed: datetime.datetime = clock.now()
        self.answered: dict[tuple[str, int], int] = {}
        """Answers by page (``healthz``, ``livez``) and status, for the metrics."""

    def queued(self) -> None:
        """A change came."""
        if self._waiting_since is None:
            self._waiting_since = self._clock.monotonic()

    def committed(self) -> None:
        """Everything that came so far is programmed."""
        self._waiting_since = None
        self._committed = self._clock.now()

    @property
    def healthy(self) -> bool:
        """Whether no change has waited too long."""
        waiting = self._waiting_since
        return waiting is None or self._clock.monotonic() - waiting < PATIENCE_S

    def healthz(self, node: Node | None) -> Response:
        """Whether new connections should be sent to this node; ``node`` as it is now, None when it is not there."""
        return self._answer("healthz", eligible(node))

    def livez(self) -> Response:
        """Whether the proxy itself works."""
        return self._answer("livez", None)

    def _answer(self, page: str, node_eligible: bool | None) -> Response:
        healthy = self.healthy
        now = self._clock.now()
        updated = rfc3339_micro(now if healthy else self._committed)
        good = healthy and node_eligible is not False
        body: dict[str, object] = {"lastUpdated": updated, "currentTime": rfc3339_micro(now)}
        if node_eligible is not None:
            body["nodeEligible"] = node_eligible
        body["healthy"] = good
        body["status"] = {family: {"lastUpdated": updated, "healthy": healthy} for family in self._families}
        code = 200 if good else 503
        self.answered[page, code] = self.answered.get((page, code), 0) + 1
        return Response(code, msgspec.json.encode(body) + b"\n", headers=(_NOSNIFF,))


def eligible(node: Node | None) -> bool:
    """Whether the node is to get new connections: it is there and not about to go."""
    if node is None or node.metadata.deletion_timestamp is not None:
        return False
    return all(taint.key != AUTOSCALER_TAINT for taint in node.spec.taints)


def service_answer(service: str, endpoints: int, *, healthy: bool) -> Response:
    """The answer of a healthCheckNodePort: ``service`` is ``namespace/name``, ``endpoints`` the ready ones here."""
    namespace, _, name = service.partition("/")
    body = (
        f'{{\n\t"service": {{\n\t\t"namespace": "{namespace}",\n\t\t"name": "{name}"\n\t}},\n'
        f'\t"localEndpoints": {endpoints},\n\t"serviceProxyHealthy": {"true" if healthy else "false"}\n}}'
    )
    headers = (_NOSNIFF, ("X-Load-Balancing-Endpoint-Weight", str(endpoints)))
    return Response(200 if endpoints and healthy else 503, body.encode(), headers=headers)

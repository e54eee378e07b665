"""Whether the proxy is healthy, and the answers of ``/healthz``, ``/livez`` and healthCheckNodePort.

The proxy is unhealthy when a change has waited for more than a minute without a successful commit. It is healthy while
it starts and while nothing changes. ``/livez`` reports this health to the program that restarts the proxy. A cloud's
load balancer asks ``/healthz`` before it sends new connections to the node: ``/healthz`` also fails when the node is
not known yet, is being deleted, or has the taint of the cluster autoscaler. A healthCheckNodePort reports whether this
node has a ready endpoint of its Service, so that a load balancer skips nodes without one. Bodies, headers and rules are
those of kube-proxy (pkg/proxy/healthcheck), so dashboards and load balancers need no change.
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
    """The times of the oldest uncommitted change and of the last commit."""

    def __init__(self, clock: Clock, families: tuple[str, ...] = ("IPv4", "IPv6")) -> None:
        self._clock = clock
        self._families = families
        self._waiting_since: float | None = None
        self._committed: datetime.datetime = clock.now()
        self.answered: dict[tuple[str, int], int] = {}
        """Answers by page (``healthz``, ``livez``) and status, for the metrics."""

    def queued(self) -> None:
        """Records a change that is not committed yet."""
        if self._waiting_since is None:
            self._waiting_since = self._clock.monotonic()

    def committed(self) -> None:
        """Records a commit of all changes so far."""
        self._waiting_since = None
        self._committed = self._clock.now()

    @property
    def healthy(self) -> bool:
        """Whether no change has waited too long."""
        waiting = self._waiting_since
        return waiting is None or self._clock.monotonic() - waiting < PATIENCE_S

    def healthz(self, node: Node | None) -> Response:
        """Whether new connections should be sent to this node; ``node`` is None when the Node does not exist."""
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
    """Whether the node should get new connections: it exists and will not be removed soon."""
    if node is None or node.metadata.deletion_timestamp is not None:
        return False
    return all(taint.key != AUTOSCALER_TAINT for taint in node.spec.taints)


def service_answer(service: str, endpoints: int, *, healthy: bool) -> Response:
    """The answer of a healthCheckNodePort; ``service`` is ``namespace/name``, ``endpoints`` are ready on this node."""
    namespace, _, name = service.partition("/")
    body = (
        f'{{\n\t"service": {{\n\t\t"namespace": "{namespace}",\n\t\t"name": "{name}"\n\t}},\n'
        f'\t"localEndpoints": {endpoints},\n\t"serviceProxyHealthy": {"true" if healthy else "false"}\n}}'
    )
    headers = (_NOSNIFF, ("X-Load-Balancing-Endpoint-Weight", str(endpoints)))
    return Response(200 if endpoints and healthy else 503, body.encode(), headers=headers)

"""The Leases by which nodes show that their agents are alive: this node writes its own, and watches all."""

import datetime

from podwire.cluster.names import L2_SPEAKER
from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import LEASES
from podwire.loadbalancer.liveness import OLD_S, SpeakerLiveness
from podwire.model.node import Lease
from podwire.runtime.clock import parse_rfc3339, rfc3339_micro

_PREFIX = "podwire-l2-node-"


class NodeLeases:
    """The Leases of all nodes, seen from ``node``; ``liveness`` gets their renewals."""

    def __init__(self, client: Client, node: str, namespace: str, liveness: SpeakerLiveness) -> None:
        self.informer: Informer[Lease] = Informer(client, LEASES, namespace=namespace, label_selector=L2_SPEAKER)
        self.informer.subscribe(self._renewed)
        self._client, self._clock = client, client.clock
        self._node = node
        self._namespace = namespace
        self._liveness = liveness

    async def write(self) -> None:
        """Renews the Lease of this node.

        Raises: ApiError, ApiUnreachable, ProtocolError.
        """
        name = _PREFIX + self._node
        spec = {"holderIdentity": self._node, "leaseDurationSeconds": 4, "renewTime": rfc3339_micro(self._clock.now())}
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, self._namespace)
        except NotFound:
            metadata = {"name": name, "namespace": self._namespace, "labels": {L2_SPEAKER: "true"}}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._client.create(LEASES, lease, self._namespace)

    def own_age_s(self) -> float:
        """The seconds since this node renewed its Lease, by this machine's clock; infinite when there is none."""
        lease = self.informer.get(f"{self._namespace}/{_PREFIX}{self._node}")
        return _age_s(lease.spec.renew_time or "", self._clock.now()) if lease is not None else float("inf")

    async def is_dead(self, node: str) -> bool:
        """Whether the API has no Lease of a node, or the same as the watch, which may be late.

        Raises: ApiError, ApiUnreachable, ProtocolError.
        """
        known = self.informer.get(f"{self._namespace}/{_PREFIX}{node}")
        try:
            present = await self._client.get(LEASES, _PREFIX + node, self._namespace)
        except NotFound:
            return True
        return known is not None and known.metadata.resource_version == present["metadata"]["resourceVersion"]

    def _renewed(self, _key: str, old: Lease | None, new: Lease | None) -> None:
        item = new or old
        if item is None:
            return
        node, renewal = item.metadata.name.removeprefix(_PREFIX), (new.spec.renew_time or "") if new else None
        is_old = renewal is not None and _age_s(renewal, self._clock.now()) > OLD_S
        self._liveness.observe(node, renewal, self._clock.monotonic(), is_old=is_old)


def _age_s(renewal: str, now: datetime.datetime) -> float:
    try:
        return (now - parse_rfc3339(renewal)).total_seconds()
    except ValueError:
        return float("inf")

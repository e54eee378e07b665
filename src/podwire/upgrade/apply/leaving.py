"""Takes pods of a DNS server that end out of their Services, while their processes still answer.

Why. When a pod is deleted, its endpoint becomes ``terminating`` and gets no new flows. But connection tracking of each
node keeps the flows that it knows: a client that asks again from the same port reaches the old pod until proxies forget
the flow, which they do when the endpoint is no longer serving. With kubeadm's probe of readiness (every 10 s, three
failures) that is up to 30 s after the deletion, and CoreDNS ends after the 5 s of ``lameduck``: queries in between have
no answer.

How. A pod that has been terminating for :data:`LAST_ANSWERS_S` loses the labels that Services select. The controller of
EndpointSlices takes it out, proxies forget the flows to it, and the process still answers meanwhile. Nobody counts a
pod that is being deleted, so its ReplicaSet makes no other one; nothing has to be taken back; a run that is killed here
leaves a rollout as Kubernetes does it. A pod is left alone while no other pod of the workload is ready.

Cost: a list of pods for each look at the rollout, one write for each old pod.
Sources: KEP-1672 (terminating endpoints); kube-proxy, ``pkg/proxy/conntrack``; CoreDNS, plugins health and ready.
"""

import contextlib
from typing import Any

from podwire.cluster.names import POD_LEAVING
from podwire.errors import NotFound
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.podruns import is_ready
from podwire.kube.resources import PODS, SERVICES, Json
from podwire.upgrade.apply.stepchanges import answers_dns

LAST_ANSWERS_S = 1.0
"""Seconds until the queries that were under way when the pod began to end are answered."""


class LeavingPods:
    """The pods of one Deployment that end during its rollout."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._since: dict[str, float] = {}
        """By UID, when a pod was first seen to be terminating."""

    async def take_out(self, deployment: Json) -> bool:
        """Takes the pods out that have been terminating for long enough; whether further ones are to be taken out.

        Raises: ApiError, ApiUnreachable.
        """
        labels = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
        if not labels or not answers_dns(deployment):
            return False
        namespace, now = str(deployment["metadata"]["namespace"]), self._client.clock.monotonic()
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        pods = (await self._client.list(PODS.raw, namespace, label_selector=selector)).items
        ending = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        if not ending or not any(is_ready(pod) for pod in pods):
            return bool(ending)
        since = {uid_of(pod): self._since.setdefault(uid_of(pod), now) for pod in ending}
        due = [pod for pod in ending if now - since[uid_of(pod)] >= LAST_ANSWERS_S]
        if due:
            keys = await self._keys(namespace, labels)
            for pod in due:
                await self._unlabel(pod, keys, str(deployment["metadata"]["name"]))
        return len(due) < len(ending)

    async def _keys(self, namespace: str, labels: dict[str, str]) -> set[str]:
        """The labels of the workload's selector, and those that Services select together with one of them."""
        services = (await self._client.list(SERVICES.raw, namespace)).items
        selectors = [service["spec"].get("selector") or {} for service in services]
        return {*labels, *(key for selector in selectors if labels.items() & selector.items() for key in selector)}

    async def _unlabel(self, pod: Json, keys: set[str], deployment: str) -> None:
        meta = pod["metadata"]
        present: dict[str, Any] = {key: None for key in keys if key in (meta.get("labels") or {})}
        patch = {"metadata": {"labels": {**present, POD_LEAVING: deployment}}}
        with contextlib.suppress(NotFound):
            await self._client.patch(PODS, meta["name"], patch, meta["namespace"], patch_type=MERGE_PATCH)


def uid_of(pod: Json) -> str:
    """The UID of a pod."""
    return str(pod["metadata"]["uid"])

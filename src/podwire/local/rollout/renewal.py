"""Renews the pods of a Deployment so that not even a UDP query is lost, whatever build the old pods run.

A rolling update deletes a pod while proxies still know flows to it. A server that ends soon after SIGTERM is gone
before they forget these flows, and a client that uses a port again gets no answer. So old pods leave in another order:

1. The Deployment gets as many further pods as there are old ones, and all of them become ready.
2. An EndpointSlice of this command names the old pods as terminating and serving: proxies choose them for nothing new,
   and keep the flows to them.
3. The old pods lose the labels of the Deployment and of the Service, and the Deployment gets its number back.
4. After :data:`QUIET_S` no query is under way to them. The slice goes, proxies forget the flows, and the pods end.

Each step can be repeated: an annotation of the Deployment keeps the number of replicas and the old pods meanwhile.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from podwire.cluster.names import DEPLOYMENT_RENEWAL, POD_LEAVING
from podwire.errors import AlreadyExists, NotFound
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.podruns import PodRuns, is_ready
from podwire.kube.resources import DEPLOYMENTS, ENDPOINTSLICES, PODS, Json
from podwire.model.service import SERVICE_NAME_LABEL

QUIET_S = 3.0
_FORGOTTEN_S = 1.0
_READY_S = 120.0
_MANAGER = "upgrade.podwire.io"


class Renewal:
    """The renewal of one Deployment, whose pods serve one Service of its namespace."""

    def __init__(self, client: Client, deployment: Json, service: str) -> None:
        meta = deployment["metadata"]
        self._client = client
        self._runs = PodRuns(client, str(meta["namespace"]))
        self._deployment = deployment
        self._name = str(meta["name"])
        self._namespace = str(meta["namespace"])
        self._service = service
        self._labels: dict[str, str] = deployment["spec"]["selector"]["matchLabels"]
        self._known = str((meta.get("annotations") or {}).get(DEPLOYMENT_RENEWAL) or "").split()
        self._replicas = int(self._known[0]) if self._known else int(deployment["spec"].get("replicas", 1))
        self._old = set(self._known[1:])

    async def run(self) -> None:
        """Returns when all pods are new and the old ones are gone.

        Raises: ClusterError.
        """
        if not self._known:
            self._old = {str(pod["metadata"]["uid"]) for pod in await self._pods()}
        old = [pod for pod in await self._pods() if pod["metadata"]["uid"] in self._old]
        if old:
            await self._scale(self._replicas + len(old), " ".join([str(self._replicas), *sorted(self._old)]))
            await self._until_ready(self._replicas)
            await self._keep_flows(old)
            for pod in old:
                await self._release(pod)
        await self._scale(self._replicas, None)
        await self._until_ready(self._replicas)
        await self._client.clock.sleep(QUIET_S)
        await self._forget_flows()
        await self._client.clock.sleep(_FORGOTTEN_S)
        await self._end()

    async def _pods(self, selector: str = "") -> list[Json]:
        labels = selector or ",".join(f"{key}={value}" for key, value in self._labels.items())
        return list((await self._client.list(PODS.raw, self._namespace, label_selector=labels)).items)

    async def _scale(self, replicas: int, before: str | None) -> None:
        patch = {"metadata": {"annotations": {DEPLOYMENT_RENEWAL: before}}, "spec": {"replicas": replicas}}
        await self._client.patch(DEPLOYMENTS, self._name, patch, self._namespace, patch_type=MERGE_PATCH)

    async def _until_ready(self, number: int) -> None:
        """Waits until that many new pods are ready."""

        async def late() -> str:
            pods = await self._pods()
            ready = sum(1 for pod in pods if pod["metadata"]["uid"] not in self._old and is_ready(pod))
            return "" if ready >= number else f"{ready} of {number} new pods are ready"

        await self._runs.until(late, f"Deployment {self._name} is not renewed", _READY_S)

    async def _keep_flows(self, old: Sequence[Json]) -> None:
        """Writes a slice for each family of the old pods' addresses; one of an earlier run keeps its endpoints."""
        addresses = [(str(item["ip"]), pod) for pod in old for item in (pod.get("status") or {}).get("podIPs") or ()]
        ports = await self._slice_ports()
        for family in ("IPv4", "IPv6"):
            members = [(ip, pod) for ip, pod in addresses if (":" in ip) == (family == "IPv6")]
            if not members:
                continue
            name = self._slice_name(family)
            body = _slice(name, self._service, family, [_endpoint(ip, pod) for ip, pod in members])
            body["ports"] = ports
            try:
                await self._client.create(ENDPOINTSLICES.raw, body, self._namespace)
            except AlreadyExists:
                present = await self._client.get(ENDPOINTSLICES.raw, name, self._namespace)
                endpoints = _with_earlier(body["endpoints"], present.get("endpoints") or ())
                await self._client.patch(
                    ENDPOINTSLICES, name, {"endpoints": endpoints}, self._namespace, patch_type=MERGE_PATCH
                )

    async def _slice_ports(self) -> list[Any]:
        """The ports of the Service's present slices."""
        selector = f"{SERVICE_NAME_LABEL}={self._service}"
        slices = (await self._client.list(ENDPOINTSLICES.raw, self._namespace, label_selector=selector)).items
        return next((list(item["ports"]) for item in slices if item.get("ports")), [])

    async def _release(self, pod: Json) -> None:
        labels: dict[str, str | None] = {**dict.fromkeys(self._labels), POD_LEAVING: self._name}
        try:
            await self._client.patch(
                PODS, pod["metadata"]["name"], {"metadata": {"labels": labels}}, self._namespace, patch_type=MERGE_PATCH
            )
        except NotFound:
            pass

    async def _forget_flows(self) -> None:
        for family in ("IPv4", "IPv6"):
            try:
                await self._client.delete(ENDPOINTSLICES, self._slice_name(family), self._namespace)
            except NotFound:
                pass

    async def _end(self) -> None:
        """Deletes the released pods, and waits until they are gone."""
        for pod in await self._leaving():
            with contextlib.suppress(NotFound):
                await self._client.delete(PODS, pod["metadata"]["name"], self._namespace)

        async def present() -> str:
            return ", ".join(sorted(pod["metadata"]["name"] for pod in await self._leaving()))

        await self._runs.until(present, f"Deployment {self._name} has old pods that do not end", _READY_S)

    async def _leaving(self) -> list[Json]:
        return await self._pods(f"{POD_LEAVING}={self._name}")

    def _slice_name(self, family: str) -> str:
        return f"{self._service}-leaving-{family.lower()}"


def _slice(name: str, service: str, family: str, endpoints: list[Json]) -> Json:
    labels = {SERVICE_NAME_LABEL: service, "endpointslice.kubernetes.io/managed-by": _MANAGER}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels},
        "addressType": family,
        "endpoints": endpoints,
    }


def _with_earlier(endpoints: Sequence[Json], earlier: Sequence[Json]) -> list[Json]:
    """The endpoints, and those of an earlier run with further addresses."""
    addresses = {endpoint["addresses"][0] for endpoint in endpoints}
    return [*endpoints, *(endpoint for endpoint in earlier if endpoint["addresses"][0] not in addresses)]


def _endpoint(address: str, pod: Json) -> Json:
    meta = pod["metadata"]
    return {
        "addresses": [address],
        "conditions": {"ready": False, "serving": True, "terminating": True},
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
    }

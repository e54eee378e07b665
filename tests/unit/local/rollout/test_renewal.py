"""The renewal of a Deployment of DNS servers, killed between any two of its writes."""

import asyncio
import json
from typing import Any, cast

import pytest
from tests.fakes.upgrade_cluster import WaitingClock

from podwire.errors import AlreadyExists, NotFound
from podwire.kube.client import Client
from podwire.kube.decode import Page
from podwire.kube.resources import Resource
from podwire.local.rollout.renewal import Renewal

Json = dict[str, Any]
Objects = list[Json]
LABELS = {"k8s-app": "kube-dns"}


class Killed(Exception):
    """The run ended here."""


class DnsCluster:
    """A Deployment of two pods behind a Service, in an API that keeps objects by kind and name."""

    def __init__(self) -> None:
        self.clock = WaitingClock()
        self.objects: dict[tuple[str, str], Json] = {}
        self.allowed: int | None = None
        self.writes = 0
        self.unprotected: list[str] = []
        """Pods that left the Service while no slice named them."""
        self._number = 0
        meta = {"name": "dns", "namespace": "kube-system", "annotations": {}}
        self.objects["Deployment", "dns"] = {
            "metadata": meta, "spec": {"replicas": 2, "selector": {"matchLabels": LABELS}},
        }  # fmt: skip
        ports = [{"name": "dns", "port": 53, "protocol": "UDP"}]
        self.objects["EndpointSlice", "kube-dns-1"] = {"metadata": {}, "ports": ports, "endpoints": []}
        self._control()

    def pods(self) -> Objects:
        return [obj for (kind, _), obj in self.objects.items() if kind == "Pod"]

    async def get(self, resource: Resource[Any], name: str, _namespace: str = "") -> Json:
        return cast("Json", json.loads(json.dumps(self._held(resource, name))))

    async def list(self, resource: Resource[Any], _namespace: str = "", *, label_selector: str = "") -> Page[Json]:
        items = [obj for (kind, _), obj in self.objects.items() if kind == resource.kind]
        if resource.kind == "Pod":
            label, _, value = label_selector.partition("=")
            items = [pod for pod in items if pod["metadata"]["labels"].get(label) == value]
        return Page(items=tuple(json.loads(json.dumps(items))), resource_version="1", continue_="")

    async def create(self, resource: Resource[Any], body: Json, _namespace: str = "") -> Json:
        key = resource.kind, body["metadata"]["name"]
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{key} exists")
        self._write()
        self.objects[key] = body
        return body

    async def patch(self, resource: Resource[Any], name: str, body: Json, _namespace: str = "", **_: object) -> Json:
        held = self._held(resource, name)
        self._write()
        _merge(held, body)
        if resource.kind == "Pod" and held["metadata"]["name"] not in self._named():
            self.unprotected.append(name)
        self._control()
        return held

    async def delete(self, resource: Resource[Any], name: str, _namespace: str = "") -> Json:
        held = self._held(resource, name)
        self._write()
        del self.objects[resource.kind, name]
        self._control()
        return held

    def _held(self, resource: Resource[Any], name: str) -> Json:
        if (resource.kind, name) not in self.objects:
            raise NotFound(404, "NotFound", f"{name} not found")
        return self.objects[resource.kind, name]

    def _write(self) -> None:
        self.writes += 1
        if self.allowed is not None:
            if self.allowed == 0:
                raise Killed
            self.allowed -= 1

    def _named(self) -> set[str]:
        slices = [obj for (kind, _), obj in self.objects.items() if kind == "EndpointSlice"]
        return {endpoint["targetRef"]["name"] for item in slices for endpoint in item["endpoints"]}

    def _control(self) -> None:
        owned = [pod for pod in self.pods() if pod["metadata"]["labels"].items() >= LABELS.items()]
        replicas = self.objects["Deployment", "dns"]["spec"]["replicas"]
        for pod in owned[replicas:]:
            del self.objects["Pod", pod["metadata"]["name"]]
        for _ in range(replicas - len(owned)):
            self._number += 1
            name = f"dns-{self._number}"
            self.objects["Pod", name] = {
                "metadata": {"name": name, "namespace": "kube-system", "uid": f"u{self._number}", "labels": {**LABELS}},
                "spec": {"nodeName": "node-1"},
                "status": {
                    "podIPs": [{"ip": f"10.244.0.{self._number}"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }


def _merge(held: Json, body: Json) -> None:
    for key, value in body.items():
        if isinstance(value, dict) and isinstance(held.get(key), dict):
            _merge(held[key], value)
        elif value is None:
            held.pop(key, None)
        else:
            held[key] = value


def renew(cluster: DnsCluster) -> None:
    deployment = json.loads(json.dumps(cluster.objects["Deployment", "dns"]))
    asyncio.run(Renewal(cast("Client", cluster), deployment, "kube-dns").run())


def is_renewed(cluster: DnsCluster, old: set[str]) -> bool:
    deployment = cluster.objects["Deployment", "dns"]
    names = {pod["metadata"]["name"] for pod in cluster.pods()}
    return (
        len(names) == 2
        and not names & old
        and deployment["spec"]["replicas"] == 2
        and not deployment["metadata"]["annotations"]
        and [name for kind, name in cluster.objects if kind == "EndpointSlice"] == ["kube-dns-1"]
    )


def test_old_pods_leave_only_after_a_slice_names_them() -> None:
    cluster = DnsCluster()
    renew(cluster)
    assert is_renewed(cluster, {"dns-1", "dns-2"}) and cluster.unprotected == []


def test_a_renewal_that_is_killed_anywhere_continues() -> None:
    whole = DnsCluster()
    renew(whole)
    for allowed in range(whole.writes):
        cluster = DnsCluster()
        cluster.allowed = allowed
        with pytest.raises(Killed):
            renew(cluster)
        cluster.allowed = None
        renew(cluster)
        assert is_renewed(cluster, {"dns-1", "dns-2"}), allowed
        assert cluster.unprotected == [], allowed

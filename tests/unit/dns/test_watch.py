"""What the zone makes of objects that cannot be decoded."""

import asyncio
from importlib.resources import files
from typing import Any

import pytest
import yaml
from tests.fakes import hostile_objects as hostile
from tests.fakes.listing_api import ListingApi, play

from podwire.dns.watch import ZoneWatch
from podwire.dns.zone import Zone, ZoneOptions
from podwire.kube.client import Client
from podwire.runtime.supervise import Supervisor

BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "services": ({**hostile.SERVICE, "spec": {"ports": 7}}, "Service", "$.spec.ports"),
    "endpointslices": ({**hostile.SLICE, "endpoints": 7}, "EndpointSlice", "$.endpoints"),
    "pods": ({**hostile.POD, "status": []}, "Pod", "$.status"),
    "namespaces": ({"metadata": {"name": "shop", "labels": 7}}, "Namespace", "$.metadata.labels"),
}


@pytest.mark.parametrize("plural", BROKEN)
def test_undecodable_object_gets_an_event_and_others_are_served(plural: str) -> None:
    broken, kind, path = BROKEN[plural]
    valid = {**hostile.SERVICE, "metadata": {**hostile.META, "name": "other", "uid": "u2"}}
    listed = {"services": [valid], "namespaces": [hostile.NAMESPACE]}
    listed[plural] = [*listed.get(plural, []), broken]

    async def scenario(api: ListingApi, client: Client) -> None:
        zone = Zone(ZoneOptions())
        async with Supervisor(client.clock, lambda name, failure: None) as supervisor:
            running = asyncio.all_tasks()
            watch = ZoneWatch(zone, client, lambda: None, pods=True)
            watch.start(supervisor)
            await api.reported.wait()
            await watch.synced(60)
            for task in asyncio.all_tasks() - running:
                task.cancel()
        assert api.about() == [(kind, broken["metadata"]["name"], "InvalidObject")]
        assert path in api.events[0]["message"] and api.events[0]["source"] == {"component": "podwire-dns"}
        assert zone.index.service_count() == 1

    play(listed, scenario)


def test_changed_slice_of_a_headless_service_is_measured() -> None:
    service = hostile.SERVICE | {"spec": {"clusterIP": "None"}}
    meta = hostile.SLICE["metadata"]
    changed_at = {"endpoints.kubernetes.io/last-change-trigger-time": "2999-01-01T00:00:00Z"}
    changed = hostile.SLICE | {"metadata": meta | {"resourceVersion": "9", "annotations": changed_at}, "endpoints": []}

    async def scenario(_: ListingApi, client: Client) -> None:
        zone = Zone(ZoneOptions())
        arrived = asyncio.Event()

        def check() -> None:
            entry = zone.index.records.get(("default", "web"))
            if zone.index.synced and entry is not None and not entry.ready_addresses:
                arrived.set()

        async with Supervisor(client.clock, lambda name, failure: None) as supervisor:
            running = asyncio.all_tasks()
            watch = ZoneWatch(zone, client, check, pods=False)
            watch.start(supervisor)
            await arrived.wait()
            for task in asyncio.all_tasks() - running:
                task.cancel()
        counts = [value for name, _, value in watch.programming.series() if name.endswith("_count")]
        assert counts == [1]

    listed = {"services": [service], "endpointslices": [hostile.SLICE], "namespaces": [hostile.NAMESPACE]}
    play(listed, scenario, {"endpointslices": [changed]})


def test_role_of_the_server_lets_it_write_events() -> None:
    text = (files("podwire.local") / "addons" / "dns.yaml").read_text(encoding="utf-8")
    role = next(item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item["kind"] == "ClusterRole")
    assert {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]} in role["rules"]

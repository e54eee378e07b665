"""The objects of BGP at the real API server: live changes, refusals as Events, last good forms, Secrets."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.errors import Invalid
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import (
    BGPCONFIGURATIONS,
    BGPFILTERS,
    BGPPEERS,
    CUSTOMRESOURCEDEFINITIONS,
    ENDPOINTSLICES,
    EVENTS,
    NODES,
    SECRETS,
    SERVICES,
    Json,
    Resource,
)
from podwire.local.addons.ensure import manifests
from podwire.routing.backends.bgp.follow import BgpObjectsFollower
from podwire.routing.backends.bgp.objects import BgpObjects
from podwire.routing.follower import FollowerContext

TOR: Json = {"peerIP": "10.89.0.1", "asNumber": 64600, "filters": ["no-default"]}
NO_DEFAULT: Json = {"importV4": [{"action": "Reject", "cidr": "0.0.0.0/0", "matchOperator": "Equal"}]}


class Follower:
    """The follower of one agent, and the values that it handed over."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client = client
        self.taken: list[BgpObjects] = []
        self.events = EventRecorder(client, "podwire-agent")
        self.nodes = Informer(client, NODES)
        self.follower = BgpObjectsFollower(
            FollowerContext(
                client=client,
                events=self.events,
                namespace="kube-system",
                directory=directory,
                nodes=lambda: self.nodes.objects,
                masquerade=lambda: True,
                take=self.taken.append,
                node="node-1",
                device=lambda: "eth0",
            )
        )

    @property
    def now(self) -> BgpObjects:
        return self.taken[-1]

    async def during(self, scenario: Callable[["Follower"], Awaitable[None]]) -> None:
        """Follows while the scenario runs."""
        runs = (self.nodes.run, self.events.run, self.follower.run)
        tasks = [asyncio.ensure_future(run()) for run in runs]
        try:
            await self.until(lambda: self.taken)
            await scenario(self)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, check: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not check():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def event(self, name: str, text: str) -> None:
        """Returns when there is an Event on an object whose text has these words."""
        async with asyncio.timeout(60):
            while not any(  # noqa: ASYNC110
                event["involvedObject"]["name"] == name and text in event["message"]
                for event in (await self.client.list(EVENTS)).items
            ):
                await asyncio.sleep(0.02)


async def define(client: Client) -> None:
    """Creates the definitions of ``podwire up --backend bgp``."""
    for manifest in manifests(("bgp.yaml", "ippool.yaml"), "10.96.0.10", 1):
        if manifest.name.endswith(".projectcalico.org"):
            await client.create(CUSTOMRESOURCEDEFINITIONS, manifest.body)


async def put(client: Client, resource: Resource[Any], name: str, spec: Json) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
    await client.create(resource.raw, body)


def play(
    plane: StartControlPlane, folder: Path, *scenarios: Callable[[Follower], Awaitable[None]], defined: bool = True
) -> None:
    """Runs each scenario with a follower of its own, as agents that follow each other."""

    async def run() -> None:
        async with plane(nodes=1) as p:
            if defined:
                await define(p.client)
            for scenario in scenarios:
                await Follower(p.client, folder).during(scenario)

    asyncio.run(run())


def test_objects_are_followed_live(plane: StartControlPlane, tmp_path: Path) -> None:
    async def scenario(f: Follower) -> None:
        assert f.now == BgpObjects()
        await put(f.client, BGPFILTERS, "no-default", NO_DEFAULT)
        await put(f.client, BGPPEERS, "tor", TOR)
        await put(f.client, BGPCONFIGURATIONS, "node.node-1", {"asNumber": 64513})
        await f.until(lambda: f.now.peers and f.now.nodes)
        assert f.now.peers[0].imports[0].accept is False and f.now.of_node("node-1").as_number == 64513
        change: Json = {"spec": {"importV4": [{**NO_DEFAULT["importV4"][0], "action": "Accept"}]}}
        await f.client.patch(BGPFILTERS.raw, "no-default", change)
        await f.until(lambda: f.now.peers[0].imports[0].accept)
        await f.client.delete(BGPPEERS.raw, "tor")
        await f.until(lambda: not f.now.peers)

    play(plane, tmp_path, scenario)


def test_refused_object_keeps_its_last_good_form_over_a_restart(plane: StartControlPlane, tmp_path: Path) -> None:
    async def first_agent(f: Follower) -> None:
        await put(f.client, BGPFILTERS, "no-default", NO_DEFAULT)
        await put(f.client, BGPPEERS, "tor", TOR)
        await f.until(lambda: f.now.peers)
        await f.client.patch(BGPPEERS.raw, "tor", {"spec": {"nodeSelector": "rack = 'r1'"}})
        await f.event("tor", "spec.nodeSelector: not a selector: \"= 'r1'\"")
        await f.event("tor", "its last good form stays in force")
        await put(f.client, BGPPEERS, "other", {"peerIP": "10.89.0.2"})
        await f.event(
            "other", "spec.asNumber: is missing, and 10.89.0.2 is not the address of a node; it has no effect"
        )
        assert [peer.name for peer in f.now.peers] == ["tor"] and f.now.peers[0].nodes is None

    async def next_agent(f: Follower) -> None:
        assert [peer.name for peer in f.now.peers] == ["tor"] and f.now.peers[0].nodes is None
        await f.client.patch(BGPPEERS.raw, "tor", {"spec": {"nodeSelector": "rack == 'r1'"}})
        await f.until(lambda: f.now.peers[0].nodes)

    play(plane, tmp_path, first_agent, next_agent)


def test_peer_goes_on_without_a_deleted_filter(plane: StartControlPlane, tmp_path: Path) -> None:
    async def scenario(f: Follower) -> None:
        await put(f.client, BGPPEERS, "tor", TOR)
        await f.event("tor", "spec.filters[0]: there is no valid BGPFilter no-default; it has no effect")
        assert not f.now.peers, "a peer never works without the filters that it names"
        await put(f.client, BGPFILTERS, "no-default", NO_DEFAULT)
        await f.until(lambda: f.now.peers)
        await f.client.delete(BGPFILTERS.raw, "no-default")
        await f.event("tor", "there is no valid BGPFilter no-default; its last good form stays in force")
        assert f.now.peers[0].imports[0].accept is False

    play(plane, tmp_path, scenario)


def test_password_follows_its_secret(plane: StartControlPlane, tmp_path: Path) -> None:
    def secret(password: str) -> Json:
        data = {"rack": base64.b64encode(password.encode()).decode()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bgp-secrets"}, "data": data}

    async def scenario(f: Follower) -> None:
        reference = {"secretKeyRef": {"name": "bgp-secrets", "key": "rack"}}
        await put(f.client, BGPPEERS, "tor", {**TOR, "filters": [], "password": reference})
        await f.event("tor", "there is no Secret bgp-secrets with the key rack; it has no effect")
        await f.client.create(SECRETS, secret("first\n"), "kube-system")
        await f.until(lambda: f.now.peers and f.now.peers[0].password == "first")
        await f.client.patch(SECRETS, "bgp-secrets", {"data": secret("second")["data"]}, "kube-system")
        await f.until(lambda: f.now.peers[0].password == "second")
        await f.client.delete(SECRETS, "bgp-secrets", "kube-system")
        await f.event("tor", "its last good form stays in force")
        assert f.now.peers[0].password == "second"
        assert "second" not in (tmp_path / "bgp-objects.json").read_text()

    play(plane, tmp_path, scenario)


def test_kinds_that_are_defined_later_are_followed(plane: StartControlPlane, tmp_path: Path) -> None:
    async def scenario(f: Follower) -> None:
        assert f.now == BgpObjects()
        await define(f.client)
        await put(f.client, BGPCONFIGURATIONS, "default", {"asNumber": 64513})
        await f.until(lambda: f.now.default.as_number == 64513)

    play(plane, tmp_path, scenario, defined=False)


def test_local_services_are_announced_by_their_nodes(plane: StartControlPlane, tmp_path: Path) -> None:
    meta: Json = {"name": "web", "labels": {"kubernetes.io/service-name": "web"}}
    spec: Json = {
        "type": "NodePort",
        "externalTrafficPolicy": "Local",
        "clusterIP": "10.96.0.77",
        "ports": [{"port": 80}],
    }
    web: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}

    def endpoints(node: str) -> Json:
        head: Json = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta}
        return {**head, "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": node}]}

    async def scenario(f: Follower) -> None:
        await f.client.create(SERVICES.raw, web, "default")
        await f.client.create(ENDPOINTSLICES.raw, endpoints("node-1"), "default")
        await put(f.client, BGPCONFIGURATIONS, "default", {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]})
        await f.until(lambda: [str(network) for network in f.now.service_addresses] == ["10.96.0.77/32"])
        await f.client.patch(ENDPOINTSLICES.raw, "web", {"endpoints": endpoints("node-2")["endpoints"]}, "default")
        await f.until(lambda: f.now.service_addresses == ())
        await f.client.patch(ENDPOINTSLICES.raw, "web", {"endpoints": endpoints("node-1")["endpoints"]}, "default")
        await f.until(lambda: f.now.service_addresses)
        await f.client.delete(SERVICES.raw, "web", "default")
        await f.until(lambda: f.now.service_addresses == ())

    play(plane, tmp_path, scenario)


WRONG: list[tuple[Resource[Any], Json, str]] = [
    (BGPCONFIGURATIONS, {"bindMode": "Any"}, "spec.bindMode"),
    (BGPPEERS, {"peerIP": "10.89.0.1", "asNumber": 0}, "spec.asNumber"),
    (BGPFILTERS, {"importV6": [{"cidr": "::/0", "matchOperator": "In"}]}, "spec.importV6[0].action"),
]


@pytest.mark.parametrize(("resource", "spec", "field"), WRONG, ids=[resource.kind for resource, _, _ in WRONG])
def test_api_server_refuses_what_the_definition_excludes(
    plane: StartControlPlane, resource: Resource[Any], spec: Json, field: str
) -> None:
    async def run(p: ControlPlane) -> None:
        await define(p.client)
        with pytest.raises(Invalid, match=field.replace("[", r"\[").replace("]", r"\]")):
            await put(p.client, resource, "wrong", spec)

    async def play_alone() -> None:
        async with plane(nodes=1) as p:
            await run(p)

    asyncio.run(play_alone())

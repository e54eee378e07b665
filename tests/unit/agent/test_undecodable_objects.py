"""Events on the cluster's settings and ServiceCIDRs that an agent cannot decode."""

import asyncio
from typing import Any

import pytest
from tests.fakes.listing_api import ListingApi, play

from podwire.agent import settings
from podwire.agent.config import AgentConfig
from podwire.agent.services import follow_cidrs
from podwire.agent.shared import Shared
from podwire.kube.client import Client

BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "configmaps": (
        {"metadata": {"name": "podwire-config", "namespace": "kube-system"}, "data": {"routing.mtu": 7}},
        "ConfigMap", "$.data[...]",
    ),
    "servicecidrs": ({"metadata": {"name": "extra"}, "spec": {"cidrs": "10.0.0.0/16"}}, "ServiceCIDR", "$.spec.cidrs"),
}  # fmt: skip


@pytest.mark.parametrize("plural", BROKEN)
def test_undecodable_object_gets_an_event_with_its_field(plural: str) -> None:
    broken, kind, path = BROKEN[plural]

    async def scenario(api: ListingApi, client: Client) -> None:
        shared = Shared(AgentConfig(node_name="n1"), client)
        settings.add(shared)
        cidrs = follow_cidrs(shared)
        assert cidrs is not None
        runs = (shared.tasks["settings"], cidrs.run, shared.events.run)
        tasks = [asyncio.ensure_future(run()) for run in runs]
        await api.reported.wait()
        for task in tasks:
            task.cancel()
        assert api.about() == [(kind, broken["metadata"]["name"], "InvalidObject")]
        assert path in api.events[0]["message"]

    play({plural: [broken]}, scenario)


def test_configured_ranges_need_no_service_cidrs() -> None:
    async def scenario(_: ListingApi, client: Client) -> None:
        assert follow_cidrs(Shared(AgentConfig(node_name="n1", service_cidrs=("10.0.0.0/16",)), client)) is None

    play({}, scenario)

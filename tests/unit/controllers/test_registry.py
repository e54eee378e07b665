"""Configuration of a controller process."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from podwire.controllers.registry import CONTROLLERS, ControllerConfig, make_controllers
from podwire.errors import ApiError, ApiUnreachable, ConfigError
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.controller import Controller, Environment, is_namespace_terminating
from podwire.kube.resources import PODS
from podwire.local.controllers import ALL_CONTROLLERS, LocalControllerConfig, read_file
from podwire.local.controllers import CONTROLLERS as LOCAL_CONTROLLERS
from podwire.runtime.clock import SystemClock
from podwire.runtime.registry import Registry


def constructed(config: ControllerConfig, known: Registry[Controller]) -> Mapping[str, object]:
    async def run() -> Mapping[str, object]:
        return make_controllers(Environment(Client(ApiConfig("http://127.0.0.1:1"), SystemClock())), config, known)

    return asyncio.run(run())


def test_every_registered_controller_can_be_constructed() -> None:
    assert list(constructed(ControllerConfig(parts=tuple(CONTROLLERS)), CONTROLLERS)) == list(CONTROLLERS)
    assert list(constructed(LocalControllerConfig(parts=ALL_CONTROLLERS), LOCAL_CONTROLLERS)) == list(LOCAL_CONTROLLERS)


def test_a_file_without_parts_runs_nothing_beside_the_clusters_own(tmp_path: Path) -> None:
    """Scheduler, workloads, node ranges and EndpointSlices are those of the cluster."""
    file = tmp_path / "controller.yaml"
    file.write_text("controller: {leaderElection: true}\n")
    read = read_file(str(file))
    assert (read.kubeconfig, read.controller.parts) == ("", ("policystatus", "egress"))
    assert list(constructed(read.controller, LOCAL_CONTROLLERS)) == ["policystatus", "egress"]


def test_a_controller_with_its_own_client_shares_informers() -> None:
    async def run() -> None:
        clients = [Client(ApiConfig("http://127.0.0.1:1"), SystemClock()) for _ in range(2)]
        environment = Environment(clients[0])
        other = environment.acting(clients[1])
        assert (environment.client, other.client) == (clients[0], clients[1])
        assert other.of(PODS) is environment.of(PODS)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"parts": ("nope",)},
            "'nope' is not a controller; expected one of nodeipam, endpointslice, ",
        ),
        (
            {"parts": ("nodeipam",), "cluster_cidrs": ("10.0.0.0/8", "11.0.0.0/8")},
            "clusterCIDRs: expected at most one IPv4",
        ),
        ({"parts": ("nodeipam",), "service_cidrs": ("x",)}, r"serviceCIDRs\[0\]"),
        ({"parts": ("nodeipam",), "node_cidr_masks": (24, 64)}, "one mask for each"),
    ],
)
def test_errors_name_the_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        constructed(ControllerConfig(**{"parts": ("nodeipam",), **config}), CONTROLLERS)


@pytest.mark.parametrize(
    ("failure", "want"),
    [
        (ApiError(403, "Forbidden", "... in namespace x because it is being terminated"), True),
        (ApiError(403, "Forbidden", "quota"), False),
        (ApiUnreachable("being terminated"), False),
    ],
)
def test_a_namespace_that_ends_is_told_apart(failure: Exception, want: bool) -> None:
    assert is_namespace_terminating(failure) is want

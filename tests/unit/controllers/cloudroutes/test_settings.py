"""The section ``cloud`` of a controller: errors name the field."""

import asyncio

import pytest

from podwire.controllers.cloudroutes.registry import PROVIDERS, make_provider
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.controllers.registry import ControllerConfig, run
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.runtime.clock import SystemClock


def test_without_a_provider_there_is_none() -> None:
    assert make_provider(CloudSettings()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (CloudSettings(provider="aws"), "controller: cloud.cluster: '': expected 1 to 100 letters"),
        (CloudSettings(provider="aws", cluster="a b"), "controller: cloud.cluster: 'a b': expected"),
        (
            CloudSettings(provider="moon", cluster="c"),
            "controller: cloud.provider: 'moon' is not a cloud; expected one of aws",
        ),
        (
            CloudSettings(provider="aws", cluster="c", options={"routeTable": "rtb-1"}),
            "controller: cloud.options: unknown field `routeTable`; expected one of region",
        ),
        (
            CloudSettings(provider="aws", cluster="c", options={"routeTables": [1]}),
            "controller: cloud.options.routeTables[0]: ",
        ),
    ],
)
def test_wrong_settings_are_refused_before_a_controller_starts(settings: CloudSettings, message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        make_provider(settings)
    assert str(problem.value).startswith(message)
    config = ControllerConfig(parts=("cloudroutes",), cloud=settings, leader_election=True)
    with pytest.raises(ConfigError) as early:
        asyncio.run(run(Client(ApiConfig("http://127.0.0.1:1"), SystemClock()), config))
    assert str(early.value) == str(problem.value)


def test_every_provider_is_named_as_registered() -> None:
    assert [PROVIDERS.load(name).name for name in PROVIDERS] == list(PROVIDERS)

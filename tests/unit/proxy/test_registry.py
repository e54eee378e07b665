"""A data plane joins by its entry in the registry, and by nothing else."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from podwire.agent.config import overlay, parse
from podwire.errors import ConfigError
from podwire.local.config import parse_config
from podwire.proxy import registry
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.modes import ServiceModes
from podwire.proxy.servicemap import NodeFacts
from podwire.proxy.switch import Switch
from podwire.state.nft import Table

MODULE = "tests.unit.proxy.recording_dataplane"
FACTS = NodeFacts(name="n1")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A registry that has two notebooks and nothing else; what is written into them."""
    for name in tuple(registry.DATAPLANES):
        monkeypatch.delitem(registry.DATAPLANES, name)
    for name in ("notebook", "second"):
        monkeypatch.setitem(registry.DATAPLANES, name, f"{MODULE}:{name.capitalize()}")
    lines: list[str] = importlib.import_module(MODULE).written
    yield lines
    lines.clear()


def collected(lines: list[str]) -> list[str]:
    result, lines[:] = list(lines), []
    return result


def test_it_is_opened_loaded_switched_to_and_cleared(written: list[str]) -> None:
    switch = Switch(ServiceModes(), "notebook", FACTS)
    services: dict[str, Any] = {"default/web": ()}
    switch.load(services)
    assert collected(written) == ["notebook: open for n1", "notebook: load default/web", "clear"]
    switch.update(services, services)
    switch.heal(services)
    assert collected(written) == ["notebook: update default/web", "notebook: heal"]
    assert (switch.name, switch.disturbed(), switch.conflicts()) == ("notebook", True, ("notebook",))
    assert switch.desired() == (Table(family="ip", name="notebook"),)
    switch.configured_mode = "second"
    switch.load(services)
    assert collected(written) == [
        "second: open for n1",
        "second: load default/web",
        "notebook: remove",
        "notebook: close",
        "clear",
    ]
    assert (switch.name, switch.problem) == ("second", None)
    switch.close()


def test_it_may_be_asked_for_wherever_a_mode_is_named(written: list[str]) -> None:
    assert overlay({}, {"proxy.mode": "second"}, "here", {"mode": "notebook"}).proxy.mode == "second"
    assert parse("nodeName: n1\nproxy: {mode: notebook}", "here").proxy == {"mode": "notebook"}
    assert parse_config("proxy: {mode: second}", "here").proxy.mode == "second"
    with pytest.raises(ConfigError, match=r"'nftables' is not a data plane; expected one of notebook, second$"):
        parse_config("proxy: {mode: nftables}", "here")


@pytest.mark.parametrize("name", registry.DATAPLANES)
def test_every_one_has_all_that_the_seam_asks_for(name: str) -> None:
    module, _, attribute = registry.DATAPLANES[name].partition(":")
    result = importlib.import_module(module)
    created = getattr(result, attribute)
    assert created.name == name
    assert callable(result.clear)
    asked = {word for word in dir(ServiceDataPlane) if not word.startswith("_")}
    assert asked - set(dir(created)) == set()

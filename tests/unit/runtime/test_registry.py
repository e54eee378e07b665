"""What may be chosen by name."""

import sys

import pytest

from podwire.errors import ConfigError
from podwire.runtime.registry import Registry

MODULE = "podwire.state.drift"


def codecs() -> Registry[object]:
    return Registry("codec", "spec.codec", {"one": "json:dumps", "whole": "json"})


def test_an_entry_is_a_module_or_what_is_in_it() -> None:
    import json

    assert codecs().load("one") is json.dumps
    assert codecs().load("whole") is json
    assert list(codecs()) == ["one", "whole"]


def test_an_unknown_name_is_refused_with_all_names() -> None:
    with pytest.raises(
        ConfigError, match=r"^configuration: spec\.codec: 'xml' is not a codec; expected one of one, whole$"
    ):
        codecs().load("xml")
    with pytest.raises(ConfigError, match=r"^a\.yaml: mode: 'xml' is not a codec; expected one of auto, one, whole$"):
        codecs().check("xml", "a.yaml", "mode", besides=("auto",))
    codecs().check("auto", besides=("auto",))


def test_modules_are_imported_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    registry: Registry[object] = Registry("reader", "reader", {"drift": f"{MODULE}:compare"})
    assert MODULE not in sys.modules
    registry.preload()
    assert MODULE in sys.modules

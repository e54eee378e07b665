"""Every name that ingress-nginx documents is served, refused, or named in an Event; none is ignored in silence."""

from pathlib import Path

import msgspec
import pytest
import yaml
from tests.cases.gateway.ingress_cases import IngressCase, facts_of

from podwire.gateway.ingress.annotations import ANNOTATIONS, PREFIX, IngressSettings, read_annotations
from podwire.gateway.ingress.settings import KEYS, IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import translate


class Names(msgspec.Struct, frozen=True):
    """The names of annotations, or of keys; served ones with a value."""

    served: dict[str, str]
    agreed: dict[str, str]
    reported: tuple[str, ...]
    refused: tuple[str, ...] = ()


_FILE = Path(__file__).parents[3] / "cases/gateway/nginx_names.yaml"
_TABLE = msgspec.convert(yaml.load(_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader), dict[str, Names])
OF_INGRESSES, OF_CONFIG_MAPS = _TABLE["annotations"], _TABLE["keys"]


def _events(name: str, value: str) -> list[str]:
    """The messages of Events about annotations of an Ingress with this one alone."""
    paths = {"web.example": {"Prefix /": "web"}}
    ingress = {"name": "web", "hosts": paths, "annotations": {name: value}}
    case = IngressCase(name="", ingresses=(ingress,), requests=())
    problems = translate(facts_of(case, {"web": ("10.244.0.1",)}, 80, {})).problems
    return [problem.message for problem in problems if problem.reason == "UnsupportedAnnotation"]


def test_no_annotation_is_served_without_its_documentation() -> None:
    assert set(ANNOTATIONS) == {*OF_INGRESSES.served, *OF_INGRESSES.agreed}
    assert set(KEYS) == {*OF_CONFIG_MAPS.served, *OF_CONFIG_MAPS.agreed}


@pytest.mark.parametrize(("name", "value"), OF_INGRESSES.served.items())
def test_a_served_annotation_changes_a_setting(name: str, value: str) -> None:
    settings, problems = read_annotations({PREFIX + name: value})
    assert not problems and settings != IngressSettings()
    assert not _events(name, value)


@pytest.mark.parametrize(("name", "value"), OF_INGRESSES.agreed.items())
def test_an_annotation_that_asks_for_the_usual_is_accepted(name: str, value: str) -> None:
    assert read_annotations({PREFIX + name: value}) == (IngressSettings(), ())
    assert not _events(name, value)


@pytest.mark.parametrize("name", (*OF_INGRESSES.reported, *OF_INGRESSES.refused))
def test_any_other_annotation_is_named_in_an_event(name: str) -> None:
    (message,) = _events(name, "1")
    verdict = "is refused" if name in OF_INGRESSES.refused else "is not supported"
    assert message.startswith(f"metadata.annotations[{PREFIX}{name}] {verdict}")


@pytest.mark.parametrize(("key", "value"), OF_CONFIG_MAPS.served.items())
def test_a_served_key_changes_a_default(key: str, value: str) -> None:
    defaults, problems = read_defaults({key: value})
    assert not problems and defaults != IngressDefaults()


@pytest.mark.parametrize(("key", "value"), OF_CONFIG_MAPS.agreed.items())
def test_a_key_that_asks_for_the_usual_is_accepted(key: str, value: str) -> None:
    assert read_defaults({key: value}) == (IngressDefaults(), ())


@pytest.mark.parametrize("key", OF_CONFIG_MAPS.reported)
def test_any_other_key_is_a_problem(key: str) -> None:
    defaults, problems = read_defaults({key: "1"})
    assert defaults == IngressDefaults() and [problem.key for problem in problems] == [key]

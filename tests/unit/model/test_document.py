"""What is said of documents that do not fit."""

from typing import Any, Literal

import msgspec
import pytest
import yaml

from podwire.errors import ConfigError
from podwire.model.document import convert, not_yaml


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""

    word: Literal["x", "y"] = "x"
    number: int | None = None


class Whole(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A document with parts in every place where there may be some."""

    own_word: Literal["s", "t"] = "s"
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    pair: tuple[int, Part] = (1, Part())
    named: dict[str, Part] = {}
    perhaps: Part | None = None
    keyed: dict[Literal["u", "v"], int] = {}
    either: Literal["a", 1, None] = "a"


@pytest.mark.parametrize(
    ("document", "output"),
    [
        ({"ownWord": "q"}, "f.yaml: top.ownWord: 'q' is not valid; expected one of s, t"),
        ({"part": {"word": "z"}}, "f.yaml: top.part.word: 'z' is not valid; expected one of x, y"),
        ({"parts": [{}, {"word": "z"}]}, "f.yaml: top.parts[1].word: 'z' is not valid; expected one of x, y"),
        ({"pair": [1, {"word": "z"}]}, "f.yaml: top.pair[1].word: 'z' is not valid; expected one of x, y"),
        ({"named": {"a": {"word": "z"}}}, "f.yaml: top.named[...].word: 'z' is not valid; expected one of x, y"),
        ({"perhaps": {"word": "z"}}, "f.yaml: top.perhaps.word: 'z' is not valid; expected one of x, y"),
        ({"keyed": {"w": 1}}, "f.yaml: top.keyed: 'w' is not valid; expected one of u, v"),
        ({"either": 7}, "f.yaml: top.either: 7 is not valid; expected one of 1, a"),
        ({"part": {"wrod": "x"}}, "f.yaml: top.part: unknown field `wrod`; expected one of word, number"),
        ({"parts": [{"wrod": "x"}]}, "f.yaml: top.parts[0]: unknown field `wrod`; expected one of word, number"),
        ({"part": {"number": "z"}}, "f.yaml: top.part.number: expected a whole number, got a text"),
        ([], "f.yaml: top: expected an object, got a list"),
    ],
)
def test_the_field_and_what_would_fit_are_named(document: Any, output: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(document, Whole, "f.yaml", "top")
    assert str(caught.value) == output


def test_without_a_place_the_path_is_that_in_the_document() -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml: part\.word: 'z' is not valid"):
        convert({"part": {"word": "z"}}, Whole, "f.yaml")
    with pytest.raises(ConfigError, match=r"^f\.yaml: unknown field `a`; expected one of ownWord, part, "):
        convert({"a": 1}, Whole, "f.yaml")
    with pytest.raises(ConfigError, match=r"^f\.yaml: top\[0\]\.word: 'z'"):
        convert([{"word": "z"}], list[Part], "f.yaml", "top")


def test_valid_document_converts_to_a_value() -> None:
    assert convert({"ownWord": "t", "parts": [{"word": "y"}]}, Whole, "f.yaml") == Whole(
        own_word="t", parts=(Part(word="y"),)
    )


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("a: [b\n", "f.yaml:2: not YAML: did not find expected ',' or ']'"),
        (
            "a: b\n---\nc: d\n",
            "f.yaml:2: not YAML: expected a single document in the stream, but found another document",
        ),
        ("\x00", "f.yaml: not YAML: "),
    ],
)
def test_invalid_yaml_is_an_error_with_its_line(text: str, output: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.load(text, Loader=yaml.CSafeLoader)
    assert str(not_yaml(caught.value, "f.yaml")).startswith(output)
    assert str(not_yaml(caught.value, "settings", "policy.log")).startswith("settings: policy.log: not YAML: ")

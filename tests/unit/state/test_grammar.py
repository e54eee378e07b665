"""Words of a line: quoting, splitting, keyword tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.state import grammar
from podwire.state.grammar import Grammar, Option

SHAPE = Grammar(
    "thing",
    "name",
    (
        Option("size", "size", "number"),
        Option("mask", "mask", "hex"),
        Option("fast", "fast", "flag"),
        Option("unsafe", "safe", "noflag"),
        Option("up", "up", "switch", "down"),
        Option("note", "note"),
    ),
)


@given(st.lists(st.text(min_size=1)))
def test_quoted_words_are_split_again(words: list[str]) -> None:
    line = " ".join(grammar.quote(word) for word in words)
    assert grammar.split(line) == words


def test_every_form_of_option_is_read() -> None:
    fields = grammar.split('x size 3 mask 0x10 fast unsafe down note "a b"')
    assert grammar.parse(SHAPE, fields) == {
        "name": "x",
        "size": 3,
        "mask": 16,
        "fast": True,
        "safe": False,
        "up": False,
        "note": "a b",
    }


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("", "expected a word after 'thing'"),
        ("x size", "expected a word after 'size'"),
        ("x size big", "size takes a number, not 'big'"),
        ("x colour red", "unknown keyword 'colour' of thing"),
    ],
)
def test_a_wrong_word_is_named(line: str, output: str) -> None:
    with pytest.raises(ValueError, match=output):
        grammar.parse(SHAPE, grammar.split(line))

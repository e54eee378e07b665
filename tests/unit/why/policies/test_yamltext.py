"""A YAML reader reads back what is written."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.why.policies.yamltext import yaml_text

WORDS = st.text(
    st.characters(min_codepoint=0xA1, max_codepoint=0x17F) | st.sampled_from(" !#%&'*+,-.:=?@[]_`{|}~09azAZ\"\\")
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | WORDS
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(TREES)
def test_it_reads_back(value: Any) -> None:
    assert yaml.load(yaml_text(value), Loader=yaml.CSafeLoader) == value


@pytest.mark.parametrize("word", ["no", "On", "null", "1", "1e3", "0x1f", "2026-01-01", "a: b", "~", "app=web", "="])
def test_words_that_mean_something_else_are_quoted(word: str) -> None:
    assert yaml.load(yaml_text({"key": word}), Loader=yaml.CSafeLoader) == {"key": word}

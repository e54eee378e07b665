"""Canonical quantities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver.schema.quantity import canonical, parse

FORMS = {
    "0": "0", "0.5": "500m", "1000m": "1", "1": "1", "100000": "100k", "1024Mi": "1Gi", "1500Mi": "1500Mi",
    "1.5Gi": "1536Mi", "1e3": "1e3", "1E3": "1e3", "12e5": "1200e3", "100m": "100m", "0.1": "100m", "-1": "-1",
    "1.0": "1", ".5": "500m", "123456789": "123456789", "128974848": "128974848", "1Ei": "1Ei",
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_canonical(text: str) -> None:
    assert canonical(text) == FORMS[text]


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1gi", "1..0", "--1", "1Kii"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        canonical(text)


@given(st.integers(0, 10**9), st.sampled_from(["", "m", "k", "Ki", "Mi", "G", "e3"]))
def test_canonical_form_keeps_the_value(number: int, suffix: str) -> None:
    once = canonical(f"{number}{suffix}")
    assert canonical(once) == once
    assert parse(once)[0] == parse(f"{number}{suffix}")[0]

"""The texts of Secrets."""

from podwire.model.secret import Secret


def test_value_is_a_text_without_line_breaks_at_its_end() -> None:
    secret = Secret(data={"line": "YSBiCg==", "binary": "/w==", "wrong": "a"})
    assert [secret.text(key) for key in ("line", "binary", "wrong", "missing")] == ["a b", None, None, None]

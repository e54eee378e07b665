"""The exception tree and its texts."""

import pytest

from podwire import errors


def test_the_drawing_shows_every_exception_under_its_parent() -> None:
    drawn: list[str] = []
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if "──" in line:
            depth = line.index("──") // 4
            name = line.split("── ")[1].split()[0]
            drawn = [*drawn[: depth - 1], name]
            parents[name] = drawn[-2] if len(drawn) > 1 else "PodwireError"
    defined = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PodwireError) and kind is not errors.PodwireError
    }
    assert parents == defined


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (errors.ConfigError("f.yaml", "spec.a", "expected 1"), "f.yaml: spec.a: expected 1"),
        (errors.ConfigError("f.yaml", "", "not YAML"), "f.yaml: not YAML"),
        (errors.KernelError("add", "link eth0", 17, "File exists"), "add link eth0: errno 17 (File exists)"),
        (errors.CniError(11, "try again", "agent"), "CNI error 11: try again: agent"),
        (errors.ProtocolError("remote", "cut"), "remote: cut"),
    ],
)
def test_texts(failure: errors.PodwireError, text: str) -> None:
    assert str(failure) == text


def test_unsupported_names_feature_and_minimum() -> None:
    failure = errors.Unsupported("ipvs", "4.0")
    assert (failure.feature, failure.minimum, failure.errno) == ("ipvs", "4.0", 95)

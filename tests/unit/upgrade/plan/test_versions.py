import pytest

from podwire.errors import ConfigError
from podwire.upgrade.plan.versions import Version, coredns_for, minors_between, parse_target, parse_version


@pytest.mark.parametrize(
    ("text", "release", "addition"),
    [
        ("v1.35.2", (1, 35, 2), ""),
        ("1.36", (1, 36, 0), ""),
        ("v1.34.2+k3s1", (1, 34, 2), "+k3s1"),
        ("v1.34.1-eks-3025e55", (1, 34, 1), "-eks-3025e55"),
        ("1.6.2-100", (1, 6, 2), "-100"),
    ],
)
def test_version_has_numbers_and_an_addition(text: str, release: tuple[int, int, int], addition: str) -> None:
    version = parse_version(text)
    assert version is not None
    assert (version.release, version.addition, str(version)) == (release, addition, text.removeprefix("v"))


@pytest.mark.parametrize("text", ["latest", "", "v1", "1.x", "sha256:00", "1.²", "1." + "9" * 5000])
def test_text_without_numbers_is_no_version(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize("text", ["latest", "2.0", "1.36+k3s1", "-1.36", ""])
def test_wrong_target_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--to: expected a version of Kubernetes such as 1\.36"):
        parse_target(text, "--to")


def test_difference_counts_minor_versions() -> None:
    older, newer = Version(major=1, minor=34), Version(major=1, minor=36, patch=1)
    assert (minors_between(older, newer), minors_between(newer, older)) == (2, -2)


@pytest.mark.parametrize(
    ("minor", "expected"),
    [
        (25, ("1.9.3", True)),
        (34, ("1.12.1", True)),
        (36, ("1.14.2", True)),
        (37, ("1.14.6", True)),
        (41, ("1.14.6", False)),
        (9, ("1.9.3", False)),
    ],
)
def test_coredns_follows_kubernetes(minor: int, expected: tuple[str, bool]) -> None:
    assert coredns_for(minor) == expected

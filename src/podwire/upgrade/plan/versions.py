"""Versions of Kubernetes and of its components, and the rules for their differences. Pure.

Texts such as ``v1.35.2+k3s1`` and ``v1.11.4-eksbuild.2`` have three numbers and an addition; versions compare by the
numbers. Sources: https://kubernetes.io/releases/version-skew-policy/; the versions of CoreDNS are those of
``CoreDNSVersion`` in kubeadm's constants, Kubernetes 1.25 to 1.37.
"""

import re
from collections.abc import Mapping

from podwire.errors import ConfigError
from podwire.model.meta import Fact

_TEXT = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?([-+.].+)?", re.ASCII)

COREDNS_OF_KUBERNETES: Mapping[int, str] = {
    25: "1.9.3", 26: "1.9.3", 27: "1.10.1", 28: "1.10.1", 29: "1.11.1", 30: "1.11.1", 31: "1.11.3", 32: "1.11.3",
    33: "1.12.0", 34: "1.12.1", 35: "1.13.1", 36: "1.14.2", 37: "1.14.6",
}  # fmt: skip
"""By the minor version of Kubernetes 1.x the version of CoreDNS that kubeadm installs."""

KUBELET_OLDER = 3
"""Minor versions by which a kubelet or kube-proxy may be older than the oldest API server (since 1.28)."""


class Version(Fact, frozen=True, kw_only=True):
    """A version; ``patch`` -1 stands for a minor version without a patch release, such as ``1.36``."""

    major: int
    minor: int
    patch: int = -1
    addition: str = ""
    """The text after the numbers with its separator: ``+k3s1``, ``-eksbuild.2``; empty: an official release."""

    @property
    def release(self) -> tuple[int, int, int]:
        """What versions are compared by; without a patch release the first one of the minor version."""
        return self.major, self.minor, max(self.patch, 0)

    @property
    def minor_text(self) -> str:
        """As ``1.36``."""
        return f"{self.major}.{self.minor}"

    def __str__(self) -> str:
        patch = "" if self.patch < 0 else f".{self.patch}"
        return f"{self.minor_text}{patch}{self.addition}"


def parse_version(text: str) -> Version | None:
    """The version of a text; None for a text that is no version, such as ``latest``."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    patch = -1 if match[3] is None else int(match[3])
    return Version(major=int(match[1]), minor=int(match[2]), patch=patch, addition=match[4] or "")


def parse_target(text: str, source: str) -> Version:
    """The version of Kubernetes that a user names: ``1.36``, ``v1.36.1``.

    Raises: ConfigError naming ``source``.
    """
    version = parse_version(text)
    if version is None or version.major != 1 or version.addition:
        raise ConfigError(source, "", f"expected a version of Kubernetes such as 1.36 or 1.36.1, got {text!r}")
    return version


def minors_between(older: Version, newer: Version) -> int:
    """By how many minor versions ``newer`` is newer; negative when it is older."""
    return newer.minor - older.minor if newer.major == older.major else (newer.major - older.major) * 1000


def coredns_for(minor: int) -> tuple[str, bool]:
    """The version of CoreDNS for Kubernetes 1.``minor``, and whether the table has that version of Kubernetes.

    Without an entry, the version for the nearest older Kubernetes; for one older than the table, the first entry.
    """
    if minor in COREDNS_OF_KUBERNETES:
        return COREDNS_OF_KUBERNETES[minor], True
    older = [known for known in COREDNS_OF_KUBERNETES if known < minor]
    return COREDNS_OF_KUBERNETES[max(older, default=min(COREDNS_OF_KUBERNETES))], False

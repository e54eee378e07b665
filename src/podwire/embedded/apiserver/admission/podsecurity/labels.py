"""The Pod Security policy of a namespace, parsed from its labels.

``pod-security.kubernetes.io/MODE`` has a level, ``pod-security.kubernetes.io/MODE-version`` a version, for the modes
``enforce``, ``audit`` and ``warn``. A namespace without labels is ``privileged``. A level that cannot be read enforces
``restricted``, and neither warns nor audits. Source: ``k8s.io/pod-security-admission/api``.
"""

import re
from collections.abc import Mapping

import msgspec

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

LEVELS = ("privileged", "baseline", "restricted")
"""The levels, the most permissive first."""

LATEST = 1 << 16
"""The minor version that stands for ``latest``."""

_PREFIX = "pod-security.kubernetes.io/"
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]{0,4})")


class LevelVersion(msgspec.Struct, frozen=True):
    """A level at the version of Kubernetes that defines its controls."""

    level: str = "privileged"
    minor: int = LATEST
    """Minor version of Kubernetes 1."""

    def __str__(self) -> str:
        return f"{self.level}:{'latest' if self.minor == LATEST else f'v1.{self.minor}'}"

    @property
    def strictness(self) -> int:
        """Position of the level in :data:`LEVELS`."""
        return LEVELS.index(self.level)


class PodSecurityPolicy(msgspec.Struct, frozen=True):
    """What a namespace refuses, records and warns of."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def privileged(self) -> bool:
        """Whether every pod passes without a warning."""
        return all(mode.level == "privileged" for mode in (self.enforce, self.audit, self.warn))


def parse_policy(labels: Mapping[str, str]) -> tuple[PodSecurityPolicy, list[Cause]]:
    """The policy of a namespace with these labels, and the labels that cannot be read."""
    invalid_fields: list[Cause] = []
    enforce = _mode(labels, "enforce", "restricted", invalid_fields)
    audit = _mode(labels, "audit", "privileged", invalid_fields)
    warn = _mode(labels, "warn", "privileged", invalid_fields)
    enforced = labels.get(f"{_PREFIX}enforce") in LEVELS
    if f"{_PREFIX}warn" not in labels and enforced and enforce.strictness > warn.strictness:
        minor = warn.minor if f"{_PREFIX}warn-version" in labels else enforce.minor
        warn = LevelVersion(enforce.level, minor)
    return PodSecurityPolicy(enforce, audit, warn), invalid_fields


def _mode(labels: Mapping[str, str], mode: str, unreadable: str, wrong: list[Cause]) -> LevelVersion:
    level, minor = "privileged", LATEST
    configured = labels.get(_PREFIX + mode)
    if configured is not None:
        level = configured
        if configured not in LEVELS:
            level = unreadable
            problem = f"must be one of {', '.join(LEVELS)}"
            wrong.append(causes.invalid(f"metadata.labels[{_PREFIX}{mode}]", configured, problem))
    version = labels.get(f"{_PREFIX}{mode}-version")
    if version is not None and version != "latest":
        match = _VERSION.fullmatch(version)
        if match is None:
            problem = 'must be "latest" or "v1.x"'
            wrong.append(causes.invalid(f"metadata.labels[{_PREFIX}{mode}-version]", version, problem))
        else:
            minor = int(match[1])
    return LevelVersion(level, minor)

"""The version skew policy of Kubernetes, as findings. Pure.

Rules (https://kubernetes.io/releases/version-skew-policy/): the API servers are within one minor version of each
other; none skips a minor version; a kubelet or kube-proxy is never newer than the oldest API server and at most three
minor versions older; kube-proxy is within three minor versions of the kubelet of its node.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.model.meta import Fact
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.plan.versions import KUBELET_OLDER, Version, minors_between

_LISTED = 3
"""Nodes that a finding names; the rest are counted."""


class Versions(Fact, frozen=True, kw_only=True):
    """The versions of a cluster's programs."""

    api_servers: tuple[tuple[str, Version], ...]
    """Names as findings show them."""
    kubelets: Mapping[str, Version] = {}
    """By node."""
    kube_proxies: Mapping[str, Version] = {}
    """By node."""

    @property
    def oldest(self) -> Version:
        """The version of the oldest API server."""
        return min((version for _, version in self.api_servers), key=lambda version: version.release)

    @property
    def newest(self) -> Version:
        """The version of the newest API server."""
        return max((version for _, version in self.api_servers), key=lambda version: version.release)


def check_skew(versions: Versions, target: Version) -> tuple[UpgradeFinding, ...]:
    """What the policy forbids now or would forbid with API servers of the target version."""
    checks = (_api_servers, _target, _kubelets, _kube_proxies, _kubelets_of_proxies)
    return tuple(finding for check in checks for finding in check(versions, target))


def _blocker(**fields: Any) -> UpgradeFinding:
    return UpgradeFinding(severity="blocker", **fields)


def _api_servers(versions: Versions, target: Version) -> Iterator[UpgradeFinding]:
    if minors_between(versions.oldest, versions.newest) > 1:
        texts = ", ".join(f"{name} {version}" for name, version in versions.api_servers)
        message = f"the API servers are more than one minor version apart: {texts}"
        yield _blocker(object="API servers", message=message, remedy="upgrade the oldest API server first")


def _target(versions: Versions, target: Version) -> Iterator[UpgradeFinding]:
    step = minors_between(versions.oldest, target)
    if step > 1:
        skipped = "1 minor version" if step == 2 else f"{step - 1} minor versions"
        message = f"from {versions.oldest.minor_text} to {target.minor_text} skips {skipped}"
        remedy = f"upgrade to 1.{versions.oldest.minor + 1} first"
        yield _blocker(object="API servers", message=message, remedy=remedy)
    elif step < 0 or minors_between(versions.newest, target) < 0:
        message = f"the target {target.minor_text} is older than the API servers ({versions.newest})"
        yield _blocker(object="API servers", message=message, remedy="an API server cannot go back to an older minor")


def _kubelets(versions: Versions, target: Version) -> Iterator[UpgradeFinding]:
    yield from _of_nodes("kubelet", versions.kubelets, versions.oldest, target)


def _kube_proxies(versions: Versions, target: Version) -> Iterator[UpgradeFinding]:
    yield from _of_nodes("kube-proxy", versions.kube_proxies, versions.oldest, target)


def _of_nodes(
    program: str, by_node: Mapping[str, Version], oldest: Version, target: Version
) -> Iterator[UpgradeFinding]:
    newer = [node for node, version in by_node.items() if minors_between(oldest, version) > 0]
    if newer:
        message = f"{program} is newer than the oldest API server ({oldest}) on {_nodes(newer)}"
        yield _blocker(object=f"{program}", message=message, remedy="upgrade all API servers first")
    old = [node for node, version in by_node.items() if minors_between(version, target) > KUBELET_OLDER]
    if old:
        oldest_version = min((by_node[node] for node in old), key=lambda version: version.release)
        message = (
            f"{program} {oldest_version} is more than {KUBELET_OLDER} minor versions older than an API server "
            f"{target.minor_text} on {_nodes(old)}"
        )
        remedy = f"upgrade {program} to 1.{target.minor - KUBELET_OLDER} or newer on these nodes first"
        yield _blocker(object=f"{program}", message=message, remedy=remedy)


def _kubelets_of_proxies(versions: Versions, target: Version) -> Iterator[UpgradeFinding]:
    far = [
        node
        for node, version in versions.kube_proxies.items()
        if node in versions.kubelets and abs(minors_between(version, versions.kubelets[node])) > KUBELET_OLDER
    ]
    if far:
        message = f"kube-proxy and kubelet are more than {KUBELET_OLDER} minor versions apart on {_nodes(far)}"
        yield _blocker(object="kube-proxy", message=message, remedy="upgrade the older program on these nodes first")
    behind = [node for node, version in versions.kubelets.items() if minors_between(version, target) > KUBELET_OLDER]
    planned = [node for node, version in versions.kubelets.items() if minors_between(version, target) == KUBELET_OLDER]
    if planned and not behind:
        message = f"the kubelets of {_nodes(planned)} are at the limit of {KUBELET_OLDER} minor versions after this"
        yield UpgradeFinding(
            severity="warning", object="kubelet", message=message, remedy="upgrade them before the next minor version"
        )


def _nodes(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED])
    more = len(names) - _LISTED
    noun = "node" if len(names) == 1 else "nodes"
    return f"{noun} {shown}" + (f" and {more} more" if more > 0 else "")

"""The version skew policy of Kubernetes as a table: versions, target, and what is forbidden."""

import pytest

from podwire.upgrade.plan.skew import Versions, check_skew
from podwire.upgrade.plan.versions import Version, parse_target


def versions(servers: str, kubelets: str = "", proxies: str = "") -> Versions:
    """Versions of texts such as ``1.35 1.36``; nodes are named n0, n1, ..."""

    def by_node(text: str) -> dict[str, Version]:
        return {f"n{number}": parse_target(word, "t") for number, word in enumerate(text.split())}

    named = tuple((f"server-{n}", parse_target(word, "t")) for n, word in enumerate(servers.split()))
    return Versions(api_servers=named, kubelets=by_node(kubelets), kube_proxies=by_node(proxies))


CASES = {
    "next minor": (versions("1.35 1.35", "1.35 1.34", "1.35"), "1.36", ()),
    "same version": (versions("1.36.1", "1.36.1"), "1.36", ()),
    "skipped minor": (versions("1.34"), "1.36", ("from 1.34 to 1.36 skips 1 minor version",)),
    "half upgraded control plane": (versions("1.35 1.36"), "1.36", ()),
    "servers far apart": (
        versions("1.34 1.36"),
        "1.36",
        ("the API servers are more than one minor", "from 1.34 to 1.36"),
    ),
    "downgrade": (versions("1.36"), "1.35", ("the target 1.35 is older than the API servers (1.36)",)),
    "kubelet at the limit": (versions("1.35", "1.33 1.35"), "1.36", ("the kubelets of node n0 are at the limit of 3",)),
    "kubelet too old": (
        versions("1.35", "1.32 1.35"),
        "1.36",
        ("kubelet 1.32 is more than 3 minor versions older than an API server 1.36 on node n0",),
    ),
    "kubelet newer": (versions("1.35 1.36", "1.36"), "1.36", ("kubelet is newer than the oldest API server (1.35)",)),
    "kube-proxy newer": (
        versions("1.35 1.36", "1.35", "1.36"),
        "1.36",
        ("kube-proxy is newer than the oldest API server (1.35) on node n0",),
    ),
    "kube-proxy far from kubelet": (
        versions("1.36", "1.32", "1.36"),
        "1.36",
        ("kubelet 1.32 is more than 3", "kube-proxy and kubelet are more than 3 minor versions apart on node n0"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_policy_finds_what_is_forbidden(case: str) -> None:
    present, target, expected = CASES[case]
    findings = check_skew(present, parse_target(target, "t"))
    assert len(findings) == len(expected), findings
    for finding, text in zip(findings, expected, strict=True):
        assert text in finding.message
        assert finding.severity == ("warning" if "at the limit" in text else "blocker")
        assert finding.remedy


def test_many_nodes_are_counted() -> None:
    present = versions("1.35", " ".join(["1.31"] * 1000))
    assert check_skew(present, parse_target("1.35", "t"))[0].message.endswith("on nodes n0, n1, n10 and 997 more")

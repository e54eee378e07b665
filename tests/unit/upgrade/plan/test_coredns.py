"""Checks of CoreDNS' Deployment, and the changes of its ConfigMaps."""

import pytest
from tests.cases.upgrade_clusters import Json, changed, inventory

from podwire.upgrade.inventory.components import find_components
from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.inventory.layout import recognize
from podwire.upgrade.plan.coredns import change_corefile, check_deployment
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.values import UpgradeFinding, text_digest
from podwire.upgrade.plan.versions import parse_target

TARGETS = Targets(version=parse_target("1.36", "t"))


def findings(present: Inventory) -> dict[str, UpgradeFinding]:
    deployment = present.deployment("kube-system", "coredns")
    component = find_components(present, recognize(present)).component("coredns")
    assert deployment is not None and component is not None
    return {finding.field.rpartition(".")[2]: finding for finding in check_deployment(deployment, component, present)}


def test_stock_deployment_has_no_finding() -> None:
    assert findings(inventory("kubeadm")) == {}


def container(**fields: object) -> Json:
    """The patch of CoreDNS' container in the cluster of kubeadm."""
    present = inventory("kubeadm").deployment("kube-system", "coredns")
    assert present is not None
    main = present["spec"]["template"]["spec"]["containers"][0] | fields
    return {"spec": {"template": {"spec": {"containers": [main]}}}}


CHECKS = {
    "no readiness probe": (container(readinessProbe=None), "readinessProbe", "blocker", "is missing"),
    "probe of health": (
        container(readinessProbe={"httpGet": {"path": "/health", "port": 8080}}),
        "readinessProbe", "warning", "asks /health",
    ),
    "one replica": ({"spec": {"replicas": 1}}, "replicas", "blocker", "with one pod any restart is an outage"),
    "recreate": ({"spec": {"strategy": {"type": "Recreate"}}}, "type", "blocker", "all pods end before"),
    "most at once": (
        {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": "75%"}}}}, "maxUnavailable", "warning", "75% of 4",
    ),
    "limit of CPU time": (container(resources={"limits": {"cpu": "200m"}}), "limits", "warning", "cpu 200m"),
    "short grace": (
        {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 3}}}},
        "terminationGracePeriodSeconds", "warning", "does not leave the time of lameduck",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKS)
def test_rollout_that_loses_queries_is_found(case: str) -> None:
    patch, field, severity, message = CHECKS[case]
    finding = findings(changed("kubeadm", "Deployment", "coredns", patch))[field]
    assert (finding.severity, message in finding.message) == (severity, True), finding
    assert finding.remedy


def test_deployment_of_the_distribution_has_warnings_only() -> None:
    severities = {finding.severity for finding in findings(inventory("k3s")).values()}
    assert severities == {"warning"}


def corefile(text: str) -> Inventory:
    return changed("kubeadm", "ConfigMap", "coredns", {"data": {"Corefile": text}})


def test_removed_option_is_taken_out_before_the_pods_change() -> None:
    text = ".:53 {\n  errors\n  kubernetes cluster.local {\n    upstream\n  }\n  ready\n}\n"
    present = corefile(text)
    change = change_corefile(present, "v1.6.2", "v1.8.6", TARGETS)
    assert change.before_pods
    (changed_map,) = change.changes
    assert changed_map.patch == {
        "data": {"Corefile": ".:53 {\n  errors\n  kubernetes cluster.local {\n  }\n  ready\n}\n"}
    }
    assert "-    upstream\n" in changed_map.diff
    assert changed_map.digests == {"Corefile": text_digest(text)}


def test_new_option_is_taken_out_before_the_pods_go_back() -> None:
    change = change_corefile(corefile(".:53 {\n  cache 30 {\n    keepttl\n  }\n}\n"), "v1.13.1", "v1.9.3", TARGETS)
    assert change.before_pods and len(change.changes) == 1


def test_file_changes_after_pods_when_the_old_release_refuses_it() -> None:
    change = change_corefile(corefile(".:53 {\n  kubernetes cluster.local\n}\n"), "v1.4.0", "v1.6.2", TARGETS)
    assert not change.before_pods
    assert "ready" in change.changes[0].patch["data"]["Corefile"]


def test_file_that_neither_order_keeps_valid_is_exclusive() -> None:
    text = ".:53 {\n  kubernetes cluster.local\n  proxy . /etc/resolv.conf\n}\n"
    change = change_corefile(corefile(text), "v1.4.0", "v1.6.2", TARGETS)
    assert [item.exclusive for item in change.changes] == [True]
    assert any("CoreDNS v1.4.0 refuses the new file (line 2: ready)" in f.message for f in change.findings)


def test_custom_files_are_migrated_too() -> None:
    data = {
        "data": {"corp.server": "corp.example {\n  proxy . 192.0.2.53\n}\n", "x.override": "upstream\n", "notes": "{"}
    }
    change = change_corefile(changed("k3s", "ConfigMap", "coredns-custom", data), "1.3.1", "1.8.3", TARGETS)
    custom = next(item for item in change.changes if item.name == "coredns-custom")
    assert custom.patch == {"data": {"corp.server": "corp.example {\n  forward . 192.0.2.53\n}\n"}}


def test_broken_corefile_is_a_blocker() -> None:
    change = change_corefile(corefile(".:53 {\n"), "v1.13.1", "v1.14.2", TARGETS)
    assert [finding.severity for finding in change.findings] == ["blocker"]

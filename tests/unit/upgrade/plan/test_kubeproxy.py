"""What becomes of a configuration of kube-proxy in a newer version."""

import pytest
import yaml
from tests.cases.upgrade_clusters import changed, inventory, inventory_of, node, objects

from podwire.upgrade.inventory.inventory import Inventory
from podwire.upgrade.plan.kubeproxy import check_configuration, mode_in, pinned_mode, read_configuration
from podwire.upgrade.plan.values import text_digest
from podwire.upgrade.plan.versions import parse_target


def with_fields(**fields: object) -> Inventory:
    """The cluster of kubeadm in which the configuration has these fields."""
    document = (
        yaml.load(inventory("kubeadm").config_maps["kube-system/kube-proxy"]["config.conf"], Loader=yaml.CSafeLoader)
        | fields
    )
    return changed("kubeadm", "ConfigMap", "kube-proxy", {"data": {"config.conf": yaml.safe_dump(document)}})


def findings(cluster: Inventory, before: str, target: str) -> dict[str, tuple[str, str]]:
    """Severity and message by field."""
    versions = parse_target(before, "t"), parse_target(target, "t")
    listed = check_configuration(read_configuration(cluster), cluster, *versions)
    return {finding.field: (finding.severity, finding.message) for finding in listed}


IPVS = {
    "1.34": "info",
    "1.35": "warning",
    "1.39": "warning",
    "1.40": "blocker",
    "1.43": "blocker",
}


@pytest.mark.parametrize("target", IPVS)
def test_mode_ipvs_goes_step_by_step(target: str) -> None:
    severity, message = findings(with_fields(mode="ipvs"), "1.34", target)["mode"]
    assert severity == IPVS[target]
    assert "1.43" in message


def test_feature_gate_keeps_ipvs_until_it_is_removed() -> None:
    cluster = with_fields(mode="ipvs", featureGates={"KubeProxyIPVS": True})
    assert findings(cluster, "1.39", "1.40")["mode"][0] == "warning"
    assert findings(cluster, "1.42", "1.43")["mode"][0] == "blocker"
    assert "sets KubeProxyIPVS; kube-proxy ends at its start" in findings(cluster, "1.39", "1.40")["featureGates"][1]


@pytest.mark.parametrize(
    ("before", "target", "mode"),
    [("1.35", "1.36", "iptables"), ("1.38", "1.39", "iptables"), ("1.39", "1.40", "nftables")],
)
def test_default_mode_becomes_nftables(before: str, target: str, mode: str) -> None:
    configuration = read_configuration(inventory("kubeadm"))
    assert configuration.mode == ""
    assert mode_in(configuration, parse_target(target, "t").minor) == mode


def test_plan_pins_the_old_default() -> None:
    cluster = inventory("kubeadm")
    configuration = read_configuration(cluster)
    change = pinned_mode(configuration, parse_target("1.39", "t"), parse_target("1.40", "t"))
    assert change is not None
    assert '\n-mode: ""\n+mode: iptables\n' in change.diff
    assert change.digests == {"config.conf": text_digest(configuration.text)}
    assert yaml.load(change.patch["data"]["config.conf"], Loader=yaml.CSafeLoader)["mode"] == "iptables"
    assert pinned_mode(configuration, parse_target("1.38", "t"), parse_target("1.39", "t")) is None
    assert findings(cluster, "1.39", "1.40")["mode"][0] == "warning"


FILES = {
    "no line": ("kind: KubeProxyConfiguration\nmetricsBindAddress: ''\n", True),
    "null": ("kind: KubeProxyConfiguration\nmode:\n", True),
    "comment": ("kind: KubeProxyConfiguration\nmode: '' # the default\n", False),
    "JSON": ('{"kind": "KubeProxyConfiguration"}', False),
}


@pytest.mark.parametrize("case", FILES)
def test_the_mode_is_pinned_where_a_line_can_be_added(case: str) -> None:
    text, is_pinned = FILES[case]
    cluster = changed("kubeadm", "ConfigMap", "kube-proxy", {"data": {"config.conf": text}})
    configuration = read_configuration(cluster)
    change = pinned_mode(configuration, parse_target("1.39", "t"), parse_target("1.40", "t"))
    assert (change is not None) == is_pinned
    if change is not None:
        assert yaml.load(change.patch["data"]["config.conf"], Loader=yaml.CSafeLoader) == yaml.load(
            text, Loader=yaml.CSafeLoader
        ) | {"mode": "iptables"}
    assert ("the plan sets iptables first" in findings(cluster, "1.39", "1.40")["mode"][1]) == is_pinned


def test_nftables_lacks_are_named() -> None:
    listed = findings(with_fields(mode="nftables"), "1.35", "1.36")
    assert "primary addresses only" in listed["nodePortAddresses"][1]
    assert "answer on 127.0.0.1" in listed["iptables.localhostNodePorts"][1]
    assert findings(with_fields(mode="iptables"), "1.35", "1.36") == {}


def test_settings_of_ipvs_are_named() -> None:
    listed = findings(
        with_fields(mode="ipvs", ipvs={"scheduler": "lc", "strictARP": True, "tcpTimeout": "5m"}), "1.35", "1.36"
    )
    assert {"ipvs.scheduler", "ipvs.strictARP", "ipvs.tcpTimeout"} <= listed.keys()


def test_old_kernels_are_named_for_nftables() -> None:
    old = node("old-1", "v1.35.2", info={"kernelVersion": "5.4.0-200-generic"})
    text = yaml.safe_dump({"mode": "nftables"})
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": text},
    }
    listed = findings(inventory_of([old, config], "v1.35.2"), "1.35", "1.36")
    assert listed["status.nodeInfo.kernelVersion"][1].endswith("older: old-1 (5.4.0-200-generic)")


def test_fields_without_a_meaning_are_named() -> None:
    listed = findings(with_fields(portRange="1000-2000"), "1.35", "1.36")
    assert listed["portRange"] == ("warning", "was for mode userspace and is ignored since 1.26")


@pytest.mark.parametrize("text", ["{", "- a\n- b", "", "mode: [1]", "{" * 5000])
def test_broken_configuration_is_reported(text: str) -> None:
    cluster = changed("kubeadm", "ConfigMap", "kube-proxy", {"data": {"config.conf": text}})
    listed = findings(cluster, "1.35", "1.36")
    assert not listed or "is no YAML" in listed["data.config.conf"][1]


def test_mode_of_a_flag_counts() -> None:
    items = [
        item for item in objects("kubeadm") if item["metadata"]["name"] == "kube-proxy" and item["kind"] != "ConfigMap"
    ]
    items[0]["spec"]["template"]["spec"]["containers"][0]["command"].append("--proxy-mode=ipvs")
    assert findings(inventory_of(items, "v1.42.0"), "1.42", "1.43")["mode"][0] == "blocker"


@pytest.mark.parametrize(
    "arguments", ['["server","--kube-proxy-arg","proxy-mode=ipvs"]', '["--kube-proxy-arg","--proxy-mode=ipvs"]']
)
def test_mode_of_the_kube_proxy_in_k3s_counts(arguments: str) -> None:
    present = node("server-1", "v1.42.0+k3s1")
    present["metadata"]["annotations"] = {"k3s.io/node-args": arguments}
    assert findings(inventory_of([present], "v1.42.0+k3s1"), "1.42", "1.43")["mode"][0] == "blocker"


def test_broken_arguments_of_k3s_are_left_out() -> None:
    present = node("server-1", "v1.42.0+k3s1")
    present["metadata"]["annotations"] = {"k3s.io/node-args": "{"}
    assert findings(inventory_of([present], "v1.42.0+k3s1"), "1.42", "1.43") == {}

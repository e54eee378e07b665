"""CNI configuration and requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from podwire.embedded.kubelet.network import CniSandbox, NetworkList, addresses, load, parse_list, request
from podwire.errors import CniError

PODS = CniSandbox("sb1", "/run/x", "shop", "web", "u1", ({"hostPort": 80, "containerPort": 8080},), {"a": "b"})


def test_cni_args_equal_those_of_container_runtimes() -> None:
    assert PODS.arguments() == (
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=sb1;K8S_POD_UID=u1"
    )


def test_first_file_by_name_is_used(tmp_path: Path) -> None:
    for name, network in (("20-b.conflist", "b"), ("10-a.conf", "a"), ("05.txt", "x")):
        (tmp_path / name).write_text(json.dumps({"name": network, "type": "t", "cniVersion": "1.0.0"}))
    assert load(tmp_path) == NetworkList("a", "1.0.0", ({"name": "a", "type": "t", "cniVersion": "1.0.0"},))


@pytest.mark.parametrize(("text", "code"), [(None, 50), ("{", 6), ("{}", 7), ('{"name": "x", "plugins": [{}]}', 7)])
def test_invalid_configurations(tmp_path: Path, text: str | None, code: int) -> None:
    if text is not None:
        (tmp_path / "1.conf").write_text(text)
    with pytest.raises(CniError) as caught:
        load(tmp_path)
    assert caught.value.code == code


def test_highest_common_version_is_used() -> None:
    document = {"name": "n", "cniVersion": "1.0.0", "cniVersions": ["1.1.0", "0.4.0"], "plugins": [{"type": "t"}]}
    assert parse_list(document, "s").version == "1.1.0"


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        ({"type": "t"}, {}),
        ({"type": "t", "capabilities": {"portMappings": True}},
         {"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 8080}]}}),
        ({"type": "t", "capabilities": {"io.kubernetes.cri.pod-annotations": True, "bandwidth": True}},
         {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}}}),
    ],
    ids=str,
)  # fmt: skip
def test_runtime_config_follows_plugin_capabilities(plugin: dict[str, Any], expected: dict[str, Any]) -> None:
    network = NetworkList("n", "1.0.0", (plugin,))
    head = {"cniVersion": "1.0.0", "name": "n", "prevResult": {"ips": []}}
    assert request(network, plugin, PODS, {"ips": []}) == plugin | head | expected


def test_addresses_come_with_ipv4_first() -> None:
    assert addresses({"ips": [{"address": "fd00::5/128"}, {"address": "10.0.0.5/32"}]}) == ("10.0.0.5", "fd00::5")
    assert addresses(None) == ()

"""Demands for other IPAM plugins, and what the program reports of them."""

import json
from typing import Any

import pytest

from podwire.cni import delegation, protocol
from podwire.errors import CniError


def request(report: str | None = None, **conf: Any) -> protocol.CniRequest:
    environment = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0"}
    if report is not None:
        environment["CNI_PODWIRE_IPAM"] = report
    body = {"cniVersion": "1.0.0", "name": "n", "type": "podwire-cni", "ipam": {"type": "host-local"}, **conf}
    return protocol.parse(environment, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("ipam", "expected"),
    [(None, ""), ({}, ""), ({"type": ""}, ""), ({"type": "podwire-cni"}, ""), ({"Type": "static"}, "static")],
)
def test_other_plugins_are_recognized(ipam: dict[str, str] | None, expected: str) -> None:
    assert delegation.foreign(request(ipam=ipam).conf) == expected


@pytest.mark.parametrize("name", ["../host-local", "/bin/sh", "..", "a/b"])
def test_a_path_is_no_plugin(name: str) -> None:
    with pytest.raises(CniError) as failure:
        delegation.foreign(request(ipam={"type": name}).conf)
    assert failure.value.code == 7


def test_podwire_serves_other_plugins_only() -> None:
    own: dict[str, Any] = {"ipam": {"type": "podwire-cni"}}
    assert request(type="ptp", ipMasq=True, **own).conf.lends
    assert not request(**own).conf.lends
    assert not request().conf.lends


def test_the_plugin_is_demanded_before_it_ran() -> None:
    with pytest.raises(delegation.Demand) as demand:
        delegation.outcome(request())
    assert demand.value.message == b"\xfdADD\0host-local\0"
    assert delegation.Demand("DEL", "static", b"\1{}").message == b"\xfdDEL\0static\0\1{}"


def test_the_result_is_read_in_every_version() -> None:
    newer = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}]}
    older = {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24"}}
    for document in (newer, older):
        result = delegation.outcome(request(f"000 {json.dumps(document)}"))
        assert result.ips[0].address == "10.0.0.5/24"
    assert delegation.outcome(request("000 ")).ips == ()


@pytest.mark.parametrize(
    ("report", "code", "text"),
    [
        ("127 ", 7, "CNI_PATH"),
        ('001 {"code": 11, "msg": "full", "details": "all of it"}', 11, "full"),
        ("001 ", 999, "failed"),
        ("128 ", 999, "failed"),
        ("001 a panic", 6, "JSON"),
        ('000 {"ips": 5, "cniVersion": "1.0.0"}', 6, "1.0.0"),
    ],
)
def test_failures_of_the_plugin_are_passed_on(report: str, code: int, text: str) -> None:
    with pytest.raises(CniError) as failure:
        delegation.outcome(request(report))
    assert failure.value.code == code
    assert text in str(failure.value)

"""Addresses and hardware addresses that a runtime requests."""

import json
from typing import Any

import pytest

from podwire.cni import protocol, requested
from podwire.errors import CniError

ANNOTATION = {"io.kubernetes.cri.pod-annotations": {"podwire.io/addresses": "10.0.0.9"}}


def request(conf: dict[str, Any], args: str = "") -> protocol.CniRequest:
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c",
        "CNI_NETNS": "/n",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": args,
    }
    return protocol.parse(environment, json.dumps({"cniVersion": "1.0.0", "name": "podwire", **conf}).encode())


@pytest.mark.parametrize(
    ("conf", "args", "expected"),
    [
        ({}, "", []),
        ({}, "IgnoreUnknown=1;IP=10.0.0.3", ["10.0.0.3"]),
        ({}, "IP=10.0.0.3/24,fd00::3", ["10.0.0.3", "fd00::3"]),
        ({"args": {"cni": {"ips": ["10.0.0.4/16"]}}}, "IP=10.0.0.3", ["10.0.0.4"]),
        ({"args": {"CNI": {"ips": ["10.0.0.4"]}}, "runtimeConfig": {"ips": ["fd00::5/64"]}}, "", ["fd00::5"]),
        ({"runtimeConfig": ANNOTATION}, "", ["10.0.0.9"]),
        ({"runtimeConfig": {"ips": ["10.0.0.5"]} | ANNOTATION}, "", ["10.0.0.5"]),
    ],
)
def test_the_more_specific_request_counts(conf: dict[str, Any], args: str, expected: list[str]) -> None:
    assert [str(ip) for ip in requested.addresses(request(conf, args), first=True)] == expected


def test_annotation_is_for_the_first_interface() -> None:
    assert requested.addresses(request({"runtimeConfig": ANNOTATION}), first=False) == ()


@pytest.mark.parametrize(
    ("conf", "args", "code", "field"),
    [
        ({"runtimeConfig": {"ips": ["10.0.0.300"]}}, "", 7, "runtimeConfig.ips"),
        ({"runtimeConfig": {"ips": ["10.0.0.1", "10.0.0.2"]}}, "", 7, "runtimeConfig.ips"),
        ({"args": {"cni": {"ips": [""]}}}, "", 7, "args.cni.ips"),
        ({}, "IP=here", 4, "IP of CNI_ARGS"),
    ],
)
def test_wrong_addresses_name_their_field(conf: dict[str, Any], args: str, code: int, field: str) -> None:
    with pytest.raises(CniError) as failure:
        requested.addresses(request(conf, args), first=True)
    assert failure.value.code == code and failure.value.message.startswith(field)


def test_hardware_address_comes_from_the_same_places() -> None:
    conf = {"runtimeConfig": {"mac": "02-00-00-00-00-0A"}, "args": {"cni": {"mac": "02:00:00:00:00:0b"}}}
    assert requested.mac(request(conf)) == "02:00:00:00:00:0a"
    assert requested.mac(request({"args": conf["args"]}, "MAC=02:00:00:00:00:0c")) == "02:00:00:00:00:0b"
    assert requested.mac(request({}, "MAC=02:00:00:00:00:0c")) == "02:00:00:00:00:0c"
    assert requested.mac(request({})) == ""


@pytest.mark.parametrize("text", ["nonsense", "02:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"])
def test_hardware_addresses_of_no_interface_are_refused(text: str) -> None:
    for conf, args, code in (({"runtimeConfig": {"mac": text}}, "", 7), ({}, f"MAC={text}", 4)):
        with pytest.raises(CniError) as failure:
            requested.mac(request(conf, args))
        assert failure.value.code == code and text in failure.value.message

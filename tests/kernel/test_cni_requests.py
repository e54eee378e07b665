"""Requests as container runtimes and Multus write them: spelling, requested addresses, resolver settings, refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, inside

CAPITALS = {"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": None}


def test_containerd_adds_and_deletes_a_pod_with_a_host_port(make: Callable[..., NodeAgent]) -> None:
    node = make()
    runtime = {
        "portMappings": [CAPITALS],
        "io.kubernetes.cri.pod-annotations": None,
        "dns": {"Servers": ["10.96.0.10"], "Searches": None, "Options": None},
        "ips": None,
        "mac": None,
    }
    node.pod("web")
    status, result = node.call("ADD", "web", cniVersion="1.0.0", runtimeConfig=runtime, prevResult=None, args=None)
    assert status == 0, result
    assert result["dns"] == {"nameservers": ["10.96.0.10"]}
    assert "8080" in inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout
    assert node.call("CHECK", "web", cniVersion="1.0.0", runtimeConfig=runtime, prevResult=result) == (0, {})
    assert node.call("DEL", "web", cniVersion="1.0.0", runtimeConfig=runtime, prevResult=result) == (0, {})
    assert node.service.leases.held == {}


@pytest.mark.parametrize(
    "more",
    [
        {"runtimeConfig": {"ips": ["10.244.1.77/24"], "mac": "02:00:00:00:00:77"}},
        {"args": {"cni": {"ips": ["10.244.1.77"], "mac": "02:00:00:00:00:77"}}},
        {"arguments": ";IP=10.244.1.77;MAC=02:00:00:00:00:77"},
    ],
    ids=["runtimeConfig", "args", "CNI_ARGS"],
)
def test_a_requested_address_is_assigned(make: Callable[..., NodeAgent], more: dict[str, Any]) -> None:
    node = make()
    assert node.add("a", **more) == ["10.244.1.77"]
    other = node.add("b")[0]
    shown = json.loads(inside(node.pods / "a", "ip", "-j", "address", "show", "eth0").stdout)
    assert shown[0]["address"] == "02:00:00:00:00:77"
    assert node.ping("b", "10.244.1.77") and node.ping("a", other)
    node.pod("c")
    status, error = node.call("ADD", "c", **more)
    assert (status, error["code"]) == (1, 11), "the address is in use"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"runtimeConfig": {"ips": ["10.9.9.9"]}}, 7),
        ({"runtimeConfig": {"ips": ["10.244.1.1"]}}, 7),
        ({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}, 7),
        ({"arguments": ";IP=x"}, 4),
        ({"arguments": ";MAC=ff:ff:ff:ff:ff:ff"}, 4),
        ({"arguments": ";GATEWAY=10.244.1.1"}, 4),
        ({"runtimeConfig": {"bandwidth": {"IngressRate": 1000}}}, 2),
        ({"runtimeConfig": {"ipRanges": [[{"subnet": "10.0.0.0/8"}]]}}, 2),
        ({"ipMasq": True}, 2),
        ({"mtu": 1200}, 2),
    ],
)
def test_a_refused_request_leaks_nothing(make: Callable[..., NodeAgent], more: dict[str, Any], code: int) -> None:
    node = make()
    node.pod("a")
    status, error = node.call("ADD", "a", **more)
    assert (status, error["code"]) == (1, code), error
    assert (node.links(), node.routes(), node.service.leases.held) == ([], [], {})
    assert node.service.leases.pools[0].held == 0


def test_a_file_that_is_no_namespace_is_refused(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make()
    plain = tmp_path / "plain"
    plain.touch()
    for place in (str(plain), "/dev/null", "/proc/self/ns/uts", str(tmp_path)):
        for command in ("ADD", "CHECK"):
            status, error = node.call(command, "a", netns=place)
            assert (status, error["code"]) in ((1, 8), (1, 3)), error
        assert node.call("DEL", "a", netns=place) == (0, {})
    assert node.call("ADD", "a", netns=str(plain))[1]["code"] == 8
    assert (node.links(), node.service.leases.held) == ([], {})

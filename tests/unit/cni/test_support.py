"""Settings of a network configuration that podwire refuses."""

from typing import Any

import pytest

from podwire.cni import support
from podwire.errors import CniError


@pytest.mark.parametrize(
    ("document", "name", "value"),
    [
        ({"runtimeConfig": {"bandwidth": {"ingressRate": 1000}}}, "runtimeConfig.bandwidth", '{"ingressRate":1000}'),
        ({"RuntimeConfig": {"ipRanges": [[{"subnet": "10.0.0.0/8"}]]}}, "runtimeConfig.ipRanges", "10.0.0.0/8"),
        ({"runtimeConfig": {"infinibandGUID": "c2:11"}}, "runtimeConfig.infinibandGUID", "c2:11"),
        ({"runtimeConfig": {"deviceID": "0000:01:00.1"}}, "runtimeConfig.deviceID", "0000:01:00.1"),
        ({"ipMasq": True}, "ipMasq", "true"),
        ({"mtu": 1400}, "mtu", "1400"),
        ({"bridge": "cni0"}, "bridge", "cni0"),
    ],
)
def test_a_setting_that_podwire_lacks_is_named(document: dict[str, Any], name: str, value: str) -> None:
    with pytest.raises(CniError) as failure:
        support.check(document)
    assert failure.value.code == 2
    assert name in failure.value.message and value in failure.value.message


@pytest.mark.parametrize(
    "document",
    [
        {
            "runtimeConfig": {
                "portMappings": [{"HostPort": 1}],
                "IPs": ["10.0.0.1"],
                "mac": "02::",
                "dns": {"servers": []},
            }
        },
        {"runtimeConfig": {"bandwidth": {"IngressRate": 0, "EgressRate": 0}, "ipRanges": None, "aliases": []}},
        {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}, "cgroupPath": "/kubepods"}},
        {"runtimeConfig": None, "ipMasq": False, "mtu": 0, "vlan": None, "cni.dev/later": True, "comment": "x"},
    ],
)
def test_empty_and_unknown_settings_pass(document: dict[str, Any]) -> None:
    support.check(document)

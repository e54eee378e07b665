"""The plugin ``loopback`` without a kernel: what it asks of the device, and its answers."""

import json
from typing import Any

import pytest

from podwire.cni import loopback, protocol
from podwire.cni.protocol import CniRequest
from podwire.errors import CniError, KernelNotFound


class Devices:
    """A device ``lo`` that is up or down, or a namespace that is gone."""

    def __init__(self, *, gone: bool = False) -> None:
        self.is_up = False
        self._gone = gone

    def set_up(self, netns: str, *, up: bool) -> None:
        if self._gone:
            raise KernelNotFound("open", netns, 2)
        self.is_up = up

    def addresses(self, netns: str) -> tuple[str, ...]:
        return ("127.0.0.1/8", "127.0.0.53/8", "::1/128") if self.is_up else ()


def request(command: str, **conf: Any) -> CniRequest:
    environment = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "lo"}
    document = {"cniVersion": "1.0.0", "name": "cni-loopback", "type": "loopback", **conf}
    return protocol.parse(environment, json.dumps(document).encode())


def test_add_brings_the_device_up_and_lists_its_addresses() -> None:
    devices = Devices()
    result = json.loads(loopback.handle(request("ADD"), "/run/netns/a", devices))
    assert devices.is_up
    assert result["interfaces"] == [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/a"}]
    assert [ip["address"] for ip in result["ips"]] == ["127.0.0.1/8", "::1/128"]


def test_result_of_an_earlier_plugin_is_handed_on() -> None:
    earlier = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/24"}]}
    result = json.loads(loopback.handle(request("ADD", prevResult=earlier), "/run/netns/a", Devices()))
    assert [ip["address"] for ip in result["ips"]] == ["10.0.0.1/24"]
    assert "interfaces" not in result


def test_check_fails_while_the_device_is_down() -> None:
    devices = Devices()
    with pytest.raises(CniError, match="lo is down"):
        loopback.handle(request("CHECK"), "/run/netns/a", devices)
    devices.set_up("", up=True)
    assert loopback.handle(request("CHECK"), "/run/netns/a", devices) == b""


def test_del_takes_the_device_down_where_it_is_left() -> None:
    devices = Devices()
    devices.set_up("", up=True)
    assert loopback.handle(request("DEL"), "/run/netns/a", devices) == b""
    assert not devices.is_up
    assert loopback.handle(request("DEL"), "/run/netns/a", Devices(gone=True)) == b""
    assert loopback.handle(request("DEL"), "", Devices(gone=True)) == b""

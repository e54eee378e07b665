"""The plugin ``bandwidth``: names, rates and what stays on disk."""

from typing import Any

import msgspec
import pytest

from podwire.cni import protocol, spec
from podwire.cni.chain.bandwidth import BandwidthPlugin, ifb_name
from podwire.errors import CniError, KernelError
from podwire.state.shaping import PodLimits

RATES: dict[str, Any] = {
    "ingressRate": 8_000_000,
    "ingressBurst": 800_000,
    "egressRate": 8_000_000,
    "egressBurst": 800_000,
}


class Limiter:
    """The limits that a node holds, without a kernel."""

    def __init__(self) -> None:
        self.held: list[PodLimits] = []
        self.refuses = False

    def ticks_per_us(self) -> float:
        return 15.625

    def node_end(self, netns: str, name: str) -> str:
        return "veth7"

    def add(self, limits: PodLimits) -> str:
        if self.refuses:
            raise KernelError("limit", limits.device, 17)
        self.held.append(limits)
        return "02:00:00:00:00:07"

    def missing(self, limits: PodLimits) -> str:
        return "" if limits in self.held else "no token bucket"

    def remove(self, limits: PodLimits) -> None:
        self.held = [held for held in self.held if held != limits]

    def remove_ifb(self, name: str) -> None:
        self.held = [held for held in self.held if held.ifb != name]


class Disk:
    """Values by name."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def fact(self, name: str) -> bytes:
        return self.values.get(name, b"")

    def facts(self, beginning: str) -> dict[str, bytes]:
        return {name: body for name, body in self.values.items() if name.startswith(beginning)}

    def remember(self, name: str, body: bytes) -> None:
        self.values.pop(name, None)
        if body:
            self.values[name] = body


def request(command: str, container: str = "c1", **conf: Any) -> protocol.CniRequest:
    previous = {"interfaces": [{"name": "veth7"}, {"name": "eth0", "sandbox": "/n"}]}
    document = {"cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "prevResult": previous, **conf}
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": "/n",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/",
    }
    return protocol.parse(environment, msgspec.json.encode(document))


def test_result_has_the_ifb_device_of_the_pod() -> None:
    plugin = BandwidthPlugin(Limiter(), Disk())
    answer = msgspec.json.decode(plugin.handle(request("ADD", **RATES), "/n"))
    assert answer["interfaces"][-1] == {"name": ifb_name("net", "c1"), "mac": "02:00:00:00:00:07"}
    assert len(ifb_name("net", "c1")) == 15


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"ingressRate": 8000}, "ingressRate is set and ingressBurst is not"),
        ({"runtimeConfig": {"bandwidth": {"egressBurst": 9}}}, "runtimeConfig.bandwidth.egressBurst is set"),
        ({"egressRate": 8000, "egressBurst": 8 << 32}, "egressBurst is 34359738368 bits"),
        ({"egressRate": 7, "egressBurst": 8000}, "egressRate or egressBurst is below 8"),
        ({"egressRate": -7}, "configuration of bandwidth"),
    ],
)
def test_wrong_rates_are_named(conf: dict[str, Any], expected: str) -> None:
    with pytest.raises(CniError, match=expected):
        BandwidthPlugin(Limiter(), Disk()).handle(request("ADD", **conf), "/n")


def test_foreign_devices_are_refused() -> None:
    with pytest.raises(CniError, match="does not name the veth"):
        BandwidthPlugin(Limiter(), Disk()).handle(request("ADD", **RATES, prevResult={"interfaces": []}), "/n")


def test_failed_add_leaves_nothing_on_disk() -> None:
    limiter, disk = Limiter(), Disk()
    limiter.refuses = True
    with pytest.raises(CniError) as failure:
        BandwidthPlugin(limiter, disk).handle(request("ADD", **RATES), "/n")
    assert failure.value.code == spec.INTERNAL
    assert disk.values == {}


def test_gc_forgets_only_what_the_runtime_does_not_list() -> None:
    limiter, disk = Limiter(), Disk()
    plugin = BandwidthPlugin(limiter, disk)
    for container in ("c1", "c2"):
        plugin.handle(request("ADD", container, **RATES), "/n")
    listed: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]}
    plugin.handle(request("GC", **listed), "")
    assert [limits.ifb for limits in limiter.held] == [ifb_name("net", "c2")]
    assert list(disk.values) == ["bandwidth net/c2/eth0"]
    plugin.handle(request("DEL", "c2"), "")
    assert (limiter.held, disk.values) == ([], {})

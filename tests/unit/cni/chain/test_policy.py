"""podwire-cni behind another plugin: what it answers, what it remembers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.cni import spec
from podwire.cni.chain.policy import PolicyChain
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.errors import CniError, KernelError

RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "cni0"}, {"name": "veth7"}, {"name": "eth0", "mac": "02:00:00:00:00:07", "sandbox": "/n"}],
    "ips": [{"address": "10.244.1.7/24", "interface": 2}, {"address": "fd01::7/64", "interface": 2}],
    "dns": {},
    "somebody's": "own",
}
ADDRESSES = ("10.244.1.7", "fd01::7")


class Enforcer:
    """Who puts policies in force; ``failing`` does not."""

    def __init__(self) -> None:
        self.attached: list[Attachment] = []
        self.failing = False

    def before(self, _request: CniRequest) -> None:
        return None

    def attach(self, *attachments: Attachment) -> None:
        if self.failing:
            raise KernelError("nft", "add element", 12, "no memory")
        self.attached += attachments

    def detach(self, attachment: Attachment) -> None:
        self.attached = [other for other in self.attached if other.key != attachment.key]


class Bench:
    """A chain on a ledger, and the node's devices as it finds them."""

    def __init__(self, path: Path) -> None:
        self.enforcer = Enforcer()
        self.devices = {"veth7", "veth8"}
        self.problem = ""
        self.ledger = Ledger(path)
        self.chain = self.opened()

    def opened(self) -> PolicyChain:
        def find(named: tuple[str, ...], _addresses: tuple[str, ...]) -> str:
            return next((name for name in named if name in self.devices), "")

        return PolicyChain(self.ledger, self.enforcer, find, lambda: self.problem)

    def __call__(self, command: str, container: str = "c7", **conf: Any) -> bytes:
        return self.chain.handle(request(command, container, **conf), "/n")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    created = Bench(tmp_path / "policy.db")
    yield created
    created.ledger.close()


def request(command: str, container: str, **conf: Any) -> CniRequest:
    conf = {"prev_result": RESULT, "policy": True, "cni_version": "1.1.0", "name": "net", **conf}
    key = AttachmentKey("net", container, "eth0")
    return CniRequest(
        command=command, conf=spec.NetConf(**conf), key=key, netns="/n", namespace="shop", pod="db", uid="u"
    )


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(CniError) as failure:
        call()
    return failure.value.code


def test_add_puts_policies_in_force_and_returns_prev_result(bench: Bench) -> None:
    assert msgspec.json.decode(bench("ADD")) == RESULT
    (item,) = bench.enforcer.attached
    assert (item.host_link, item.addresses, item.namespace, item.pod, item.uid) == (
        "veth7",
        ADDRESSES,
        "shop",
        "db",
        "u",
    )
    assert item.mac == "02:00:00:00:00:07"
    assert bench("CHECK") == b""
    assert bench("DEL") == b""
    assert not bench.enforcer.attached
    assert bench("DEL") == b"", "it is gone already"


def test_attachments_are_known_after_a_restart(bench: Bench) -> None:
    bench("ADD")
    again = bench.opened()
    assert [item.addresses for item in again.held.values()] == [ADDRESSES]
    again.forget_lost(["veth8"])
    assert not again.held
    assert not bench.opened().held


def test_pod_without_its_policies_in_force_is_retried_later(bench: Bench) -> None:
    bench.enforcer.failing = True
    assert code_of(lambda: bench("ADD")) == spec.TRY_LATER
    assert not bench.chain.held
    bench.devices.clear()
    assert code_of(lambda: bench("ADD")) == spec.TRY_LATER, "its device is not there"


@pytest.mark.parametrize("conf", [{"policy": False}, {"prev_result": None}, {"prev_result": RESULT | {"ips": []}}])
def test_a_wrong_list_of_plugins_is_an_error(bench: Bench, conf: dict[str, Any]) -> None:
    assert code_of(lambda: bench("ADD", **conf)) == spec.INVALID_CONFIG


def test_address_belongs_to_the_pod_that_got_it_last(bench: Bench) -> None:
    bench("ADD")
    bench.devices.discard("veth7")
    later = RESULT | {"interfaces": [{"name": "cni0"}, {"name": "veth8"}, {"name": "eth0", "sandbox": "/m"}]}
    bench("ADD", "c8", prev_result=later)
    assert [item.host_link for item in bench.enforcer.attached] == ["veth8"]
    bench("DEL")
    assert [item.host_link for item in bench.enforcer.attached] == ["veth8"], "a late DEL of the other"


def test_check_compares(bench: Bench) -> None:
    assert code_of(lambda: bench("CHECK")) == spec.UNKNOWN_CONTAINER
    bench("ADD")
    fewer = RESULT | {"ips": RESULT["ips"][:1]}
    assert code_of(lambda: bench("CHECK", prev_result=fewer)) == spec.CHECK_FAILED
    bench.problem = "policies are not in force yet"
    assert code_of(lambda: bench("CHECK")) == spec.CHECK_FAILED
    assert code_of(lambda: bench("STATUS")) == spec.PLUGIN_NOT_AVAILABLE
    bench.problem = ""
    assert bench("STATUS") == b""
    bench.devices.clear()
    assert code_of(lambda: bench("CHECK")) == spec.CHECK_FAILED


def test_gc_removes_attachments_that_the_runtime_does_not_name(bench: Bench) -> None:
    bench("ADD")
    remaining = (spec.ValidAttachment(container_id="c7", ifname="eth0"),)
    bench("GC", valid_attachments=remaining)
    assert bench.chain.held
    bench("GC")
    assert bench.chain.held, "nothing is named at all"
    bench("GC", valid_attachments=())
    assert not bench.chain.held
    assert not bench.enforcer.attached


def test_results_of_old_versions_are_read(bench: Bench) -> None:
    old = {"cniVersion": "0.2.0", "ip4": {"ip": "10.244.1.7/24"}, "dns": {}}
    bench.chain = PolicyChain(bench.ledger, bench.enforcer, lambda _named, _addresses: "veth7", str)
    assert msgspec.json.decode(bench("ADD", prev_result=old, cni_version="0.2.0")) == old
    assert bench.enforcer.attached[0].addresses == ("10.244.1.7",)


def test_requests_are_counted(bench: Bench) -> None:
    bench("ADD")
    code_of(lambda: bench("ADD", policy=False))
    counted = {tuple(sample.labels.values()): sample.value for sample in bench.chain.samples()}  # type: ignore[union-attr]
    assert counted == {("ADD", "done"): 1, ("ADD", "failed"): 1}

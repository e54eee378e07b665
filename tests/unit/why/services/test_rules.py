"""How rules for Services are read: the mode in force, asked of the proxy itself, and nodes without a proxy."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from tests.fakes.clock import FakeClock

from podwire.errors import KernelError
from podwire.kernel.kinds import KERNEL_KINDS, KernelKind
from podwire.kernel.netns import NetnsPath
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.proxy.registry import TRACERS
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.state.kinds import PATHS
from podwire.state.network import NetworkState
from podwire.state.value import StateValue
from podwire.trace.packet import LocalAddresses, Outcome, Packet, TraceStep
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.services.rules import ask_mode, read_rules


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/proxyMode" else 404)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"iptables")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served(page: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_of_the_mode() -> None:
    with served(Page) as port:
        assert ask_mode(None, ("127.0.0.1", port)) == "iptables"
        assert ask_mode(None, ("0.0.0.0", port)) == "iptables"


def test_unanswered_mode_question_gives_no_mode() -> None:
    with served(BaseHTTPRequestHandler) as port:
        assert ask_mode(None, ("127.0.0.1", port)) == ""
    assert ask_mode(None, ("127.0.0.1", port)) == ""


def test_node_whose_services_podwire_does_not_program_has_no_rules() -> None:
    access = NodeAccess(services=NodeFacts(name="a"), parts=frozenset(("cni", "policy")), readable=False)
    rules = read_rules(access, Node(metadata=ObjectMeta(name="a")), None, {}, "")
    assert (rules.mode, rules.planned, rules.held) == ("", None, None)
    (note,) = rules.notes
    assert "leaves Services to another proxy" in note


class Refusal(msgspec.Struct, frozen=True):
    """A value of a kind that only this test has: an address that a kernel refuses."""

    address: str

    def lines(self) -> Iterator[str]:
        yield f"refuse {self.address}"


class RefusalTracer:
    """Drops the packets that a value names."""

    def __init__(self, values: Sequence[StateValue]) -> None:
        self._values = values

    def outcomes(self, packet: Packet) -> Iterator[Outcome]:
        steps = [TraceStep("prerouting", "refusals", "all", line) for value in self._values for line in value.lines()]
        dropped = Refusal(packet.destination) in self._values
        yield Outcome(verdict="drop" if dropped else "accept", packet=packet, steps=tuple(steps))

    def about(self, step: TraceStep) -> str:
        return step.rule


class RefusalTracing:
    """The tracing module of a data plane that puts such values into a kernel."""

    OWNER_MARKS: Mapping[str, Any] = {"refusals": "the test's"}

    def planned(self, _services: ServiceMap, _facts: NodeFacts, _machine: LocalAddresses) -> RefusalTracer:
        return RefusalTracer(())

    def held(self, values: Sequence[StateValue], _netns_path: NetnsPath, _machine: LocalAddresses) -> RefusalTracer:
        return RefusalTracer(values)


TRACING = RefusalTracing()


def row(*values: StateValue, mark: object) -> KernelKind:
    """The kernel's half of a kind, for a kernel that holds these values under the mark and is only read."""

    def read(_netns_path: NetnsPath, asked: object) -> tuple[StateValue, ...]:
        if asked != mark:
            raise KernelError("read", str(asked), 1, "not in this kernel")
        return values

    def write(*_arguments: object) -> Any:
        raise AssertionError("the kernel is only read")

    return KernelKind(read, write, write)


def test_values_of_a_registered_kind_are_read_and_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACERS, "refusing", f"{__name__}:TRACING")
    monkeypatch.setitem(KERNEL_KINDS, "refusals", row(Refusal("10.96.0.1"), mark="the test's"))
    monkeypatch.setitem(KERNEL_KINDS, "network", row(NetworkState(), mark=PATHS))
    monkeypatch.setitem(KERNEL_KINDS, "nftables", row(mark=None))
    nodes = NodeKernels(lambda name: NodeAccess(services=NodeFacts(name=name), service_mode="refusing"), FakeClock())
    rules = nodes.service_rules(Node(metadata=ObjectMeta(name="a")), {})
    assert rules.held is not None and rules.other_nat is None
    (outcome,) = rules.held.outcomes(Packet(source="10.0.0.1", destination="10.96.0.1"))
    assert (outcome.verdict, [step.rule for step in outcome.steps]) == ("drop", ["refuse 10.96.0.1"])
    (outcome,) = rules.held.outcomes(Packet(source="10.0.0.1", destination="10.96.0.2"))
    assert outcome.verdict == "accept"

"""Connections over loopback: what a pod of ``verify`` tries, and what it makes of the answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from podwire.dns import wire
from podwire.upgrade.verify.checks import ConnectionCheck
from podwire.upgrade.verify.connections import attempt, serve


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a pod that answers, over TCP and UDP."""
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        number = chosen.getsockname()[1]
    started = threading.Event()
    threading.Thread(target=lambda: serve(number, ready=started.set), daemon=True).start()
    assert started.wait(30)
    yield number


@contextmanager
def name_server(rcode: int) -> Iterator[int]:
    """A name server that answers one query with a code."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))

        def answer() -> None:
            data, peer = opened.recvfrom(512)
            opened.sendto(data[:2] + (0x8180 | rcode).to_bytes(2, "big") + data[4:], peer)

        worker = threading.Thread(target=answer)
        worker.start()
        yield opened.getsockname()[1]
        worker.join()


def tried(port: int, **fields: object) -> str:
    fields = {"kind": "pod", "target": "t", "address": "127.0.0.1", "port": port, **fields}
    (result,) = attempt([ConnectionCheck(**fields)], patience_s=0.0)  # type: ignore[arg-type]
    return result.problem


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_pod_that_answers_is_reached(port: int, transport: str) -> None:
    assert tried(port, transport=transport) == ""


def test_refused_connections_count_as_expected_of_policies_alone(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    assert tried(free) == "Connection refused"
    assert tried(free, kind="policy", refused=True) == ""
    assert tried(port, kind="policy", refused=True) == "was reached, and should be denied"


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_an_observer_must_see_an_expected_source_address(port: int, transport: str) -> None:
    egress = {"kind": "egress", "transport": transport}
    assert tried(port, **egress, sources=("192.0.2.1", "127.0.0.1")) == ""
    assert tried(port, **egress, sources=("192.0.2.1",), own_source=True) == ""
    wrong = tried(port, **egress, sources=("192.0.2.1", "192.0.2.2"))
    assert wrong == "saw the address 127.0.0.1, expected 192.0.2.1 or 192.0.2.2"


def test_a_server_that_tells_no_address_is_no_observer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"220 ready\n")

        worker = threading.Thread(target=answer)
        worker.start()
        problem = tried(listener.getsockname()[1], kind="egress", sources=("127.0.0.1",))
        worker.join()
    assert problem == "did not tell the address that it saw"


def test_names_must_resolve_to_the_service() -> None:
    name = {"kind": "dns", "transport": "name", "address": "localhost"}
    assert tried(53, **name, expected="127.0.0.1") == ""
    assert tried(53, **name, expected="10.96.0.9").endswith("expected 10.96.0.9")


@pytest.mark.parametrize(
    ("rcode", "problem"),
    [(wire.NOERROR, ""), (wire.NXDOMAIN, ""), (wire.SERVFAIL, "the name server answered SERVFAIL")],
)
def test_a_name_server_must_answer_without_failure(rcode: int, problem: str) -> None:
    with name_server(rcode) as number:
        assert tried(number, kind="server", transport="dns", expected="kubernetes.default.svc") == problem

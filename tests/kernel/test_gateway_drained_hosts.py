"""Open connections of a real Envoy while hosts with certificates come, go and get other certificates."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from tests.fakes.ports import free_port
from tests.kernel.gateway_engine import SETTINGS, Engine, certificate_for, running_engine
from tests.kernel.gateway_raw_backend import RawBackend, raw_entry

from podwire.gateway.envoy import engine as engine_module
from podwire.gateway.routes import EntryListener, GatewayEntry, TlsServer

NAMES = ("a.example", "b.example", "c.example")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "DRAIN_S", 3)
        with running_engine(msgspec.structs.replace(SETTINGS, access_log="")) as running:
            yield running


def entry_of(port: int, backend_port: int, names: tuple[str, ...], generation: int = 0) -> GatewayEntry:
    """Hosts with a certificate each, which differ by generation."""
    servers = tuple(TlsServer(names=(name,), certificates=(f"shop/{name}",), table="web") for name in names)
    listener = EntryListener(name="secure", port=port, protocol="HTTPS", servers=servers)
    certificates = {f"shop/{name}": certificate_for(f"shop/{name}", (name, f"{generation}.example")) for name in names}
    plain = raw_entry(port, backend_port, dict.fromkeys(NAMES, 0))
    return msgspec.structs.replace(plain, listeners=(listener,), certificates=certificates)


def connected(port: int, name: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20), server_hostname=name)


def asked(connection: ssl.SSLSocket, name: str) -> bytes:
    """The answer to a request on an open connection; empty when it is closed."""
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode())
        return connection.recv(65536)
    except (ConnectionError, ssl.SSLError):
        return b""


def test_connections_of_a_removed_host_end_later_and_no_others(engine: Engine) -> None:
    port = free_port()
    with closing(RawBackend()) as backend:
        engine.serve(entry_of(port, backend.port, NAMES[:2]))
        with connected(port, "a.example") as kept, connected(port, "b.example") as going:
            for names in (NAMES[:2], NAMES, NAMES[:2]):
                engine.serve(entry_of(port, backend.port, names))
                for connection, name in ((kept, "a.example"), (going, "b.example")):
                    answer = asked(connection, name)
                    assert b" 200 " in answer and b"connection: close" not in answer
            engine.serve(entry_of(port, backend.port, NAMES[:1]))
            assert b" 200 " in asked(going, "b.example"), "it goes on"
            going.settimeout(30)
            assert going.recv(1) == b"", "until the time for it is over"
            assert b" 200 " in asked(kept, "a.example")
        assert not engine.refusals


def test_a_renewed_certificate_closes_no_connection(engine: Engine) -> None:
    port = free_port()
    with closing(RawBackend()) as backend:
        engine.serve(entry_of(port, backend.port, NAMES))
        with connected(port, "a.example") as open_before:
            first = open_before.getpeercert(binary_form=True)
            engine.serve(entry_of(port, backend.port, NAMES, generation=1))
            for _ in range(3):
                answer = asked(open_before, "a.example")
                assert b" 200 " in answer and b"connection: close" not in answer
            with connected(port, "a.example") as after:
                assert after.getpeercert(binary_form=True) != first

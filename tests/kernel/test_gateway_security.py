"""A real Envoy, as podwire configures it, against clients that mean harm: each attack by its name."""

import json
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from tests.kernel.gateway_engine import SETTINGS, ClientRequest, Engine
from tests.kernel.gateway_site import ADMIN, PLAIN, SECURE, WEB, serve_site

from podwire.gateway.ingress.enginesettings import with_defaults
from podwire.gateway.ingress.settings import read_defaults
from podwire.gateway.ingress.translate import IngressPorts
from podwire.kernel import netns
from podwire.runtime.polling import wait_until


class Site(NamedTuple):
    """The engine and its ports."""

    engine: Engine
    ports: IngressPorts

    def status(self, data: bytes) -> int:
        """The status of the answer to bytes on a plain connection."""
        with socket.create_connection(("127.0.0.1", self.ports.http), timeout=20) as connection:
            connection.sendall(data)
            return int(connection.recv(65536).split()[1])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory))
        yield Site(engine, serve_site(engine))
        engine.close()


def _client_hello(version: int) -> bytes:
    """The first message of a TLS client that knows no version but this one (RFC 5246, section 7.4.1.2)."""
    ciphers = struct.pack("!3H", 0xC013, 0xC009, 0x002F)
    curves = struct.pack("!4H", 10, 4, 2, 23) + struct.pack("!2H2B", 11, 2, 1, 0)
    body = struct.pack("!H", version) + bytes(32) + b"\0" + struct.pack("!H", len(ciphers)) + ciphers + b"\1\0"
    body += struct.pack("!H", len(curves)) + curves
    handshake = b"\1" + struct.pack("!I", len(body))[1:] + body
    return b"\x16\x03\x01" + struct.pack("!H", len(handshake)) + handshake


@pytest.mark.parametrize(("version", "refused"), [(0x0301, True), (0x0302, True), (0x0303, False)])
def test_tls_before_1_2_is_refused(site: Site, version: int, refused: bool) -> None:
    with socket.create_connection(("127.0.0.1", site.ports.https), timeout=20) as connection:
        connection.sendall(_client_hello(version))
        answer = connection.recv(4096)
    alert, protocol_version = 0x15, 70
    assert ((answer[0], answer[-1]) == (alert, protocol_version)) == refused, answer


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 3, 4\r\n\r\nabc",
        b"POST / HTTP/1.0\r\nHost: %s\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["length then chunked", "chunked then length", "two lengths", "a list of lengths", "both in HTTP 1.0"],
)
def test_an_ambiguous_length_is_refused(site: Site, data: bytes) -> None:
    assert site.status(data.replace(b"%s", PLAIN.encode())) in (400, 426)


def test_two_host_headers_are_refused(site: Site) -> None:
    for second in ("Host: other.example", f"Host: {PLAIN}", f"hOST:{PLAIN}", "Host:"):
        assert site.status(f"GET / HTTP/1.1\r\nHost: {PLAIN}\r\nX-A: b\r\n{second}\r\n\r\n".encode()) == 400


def test_too_many_headers_are_refused(site: Site) -> None:
    headers = "".join(f"X-{number}: a\r\n" for number in range(150))
    assert site.status(f"GET / HTTP/1.1\r\nHost: {PLAIN}\r\n{headers}\r\n".encode()) == 431


def test_headers_that_are_too_large_are_refused(site: Site) -> None:
    assert site.status(f"GET / HTTP/1.1\r\nHost: {PLAIN}\r\nX-A: {'x' * 70_000}\r\n\r\n".encode()) == 431
    with socket.create_connection(("127.0.0.1", site.ports.http), timeout=20) as connection:
        connection.sendall(f"GET /{'a' * 70_000} HTTP/1.1\r\nHost: {PLAIN}\r\n\r\n".encode())
        assert connection.recv(4096).split()[1] in (b"414", b"431")


@pytest.mark.parametrize(
    ("target", "address", "path"),
    [
        ("/x/../admin", ADMIN, "/admin"),
        ("/x/%2e%2e/admin", ADMIN, "/admin"),
        ("/x/%2E%2e/admin", ADMIN, "/admin"),
        ("//admin", ADMIN, "/admin"),
        ("/./admin", ADMIN, "/admin"),
        ("/x\\..\\admin", ADMIN, "/admin"),
        ("/%61dmin", ADMIN, "/%61dmin"),
        ("/../../admin", None, None),
    ],
)
def test_a_path_is_normalized_before_it_is_matched(
    site: Site, target: str, address: str | None, path: str | None
) -> None:
    answer = site.engine.ask(site.ports.http, ClientRequest(host=PLAIN, target=target))
    if address is None:
        assert answer.status == 400 or answer.backend["address"] == ADMIN
        return
    assert answer.backend["line"].split()[1].replace("%61", "a") == "/admin", (target, path)
    assert answer.backend["address"] == address


def test_slow_headers_are_closed_in_time_and_reach_no_backend(site: Site) -> None:
    before = site.engine.backends.connections
    ending = threading.Event()
    with socket.create_connection(("127.0.0.1", site.ports.http), timeout=20) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {PLAIN}\r\nX-Slow: ".encode())

        def drip() -> None:
            while not ending.wait(0.2):
                try:
                    connection.sendall(b"a")
                except OSError:
                    return

        sender = threading.Thread(target=drip)
        sender.start()
        try:
            assert connection.recv(4096).split()[1] == b"408"
        finally:
            ending.set()
            sender.join()
    assert site.engine.backends.connections == before


def test_connections_over_the_limit_are_closed() -> None:
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory), msgspec.structs.replace(SETTINGS, max_connections=20))
        try:
            ports = serve_site(engine)
            held = [socket.create_connection(("127.0.0.1", ports.http), timeout=20) for _ in range(40)]
            try:
                closed = [connection for connection in held if _is_closed(connection)]
                assert 20 <= len(closed) < 40
            finally:
                for connection in held:
                    connection.close()
            assert wait_until(lambda: _status_or_none(engine, ports) == 200, 20)
        finally:
            engine.close()


def _is_closed(connection: socket.socket) -> bool:
    """Whether the engine closed a connection on which nothing was sent."""
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _status_or_none(engine: Engine, ports: IngressPorts) -> int | None:
    try:
        return engine.ask(ports.http, ClientRequest(host=PLAIN)).status
    except (OSError, ValueError, IndexError):
        return None


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The namespace of an entry and that of an attacker behind a link; spoofed addresses lead back to him."""
    entry, attacker = tmp_path / "entry", tmp_path / "attacker"
    for place in (entry, attacker):
        netns.create(place)
    commands = (
        (entry, "link add name e0 type veth peer name a0"),
        (entry, "link set lo up"),
        (entry, "address add 198.18.0.1/24 dev e0"),
        (entry, "link set e0 up"),
        (entry, f"link set a0 netns {attacker}"),
        (attacker, "address add 198.18.0.2/24 dev a0"),
        (attacker, "link set a0 up"),
        (entry, "route add 198.19.0.0/16 via 198.18.0.2"),
    )
    for place, words in commands:
        with netns.inside(place):
            subprocess.run(["ip", *words.split()], check=True)
    yield entry, attacker
    for place in (entry, attacker):
        netns.delete(place)


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return int(~(total + (total >> 16)) & 0xFFFF)


def _syn(source: str, target: str, ports: tuple[int, int]) -> bytes:
    """An IP packet with a TCP segment that asks for a connection."""
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    segment = struct.pack("!2H2I2B3H", *ports, random.getrandbits(32), 0, 5 << 4, 0x02, 64240, 0, 0)
    checksum = _checksum(addresses + struct.pack("!2H", socket.IPPROTO_TCP, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", checksum) + segment[18:]
    return struct.pack("!2B3H2BH", 0x45, 0, 20 + len(segment), 0, 0, 64, socket.IPPROTO_TCP, 0) + addresses + segment


def _segments_received() -> int:
    """Segments of TCP that this namespace has received."""
    names, values = [line for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if "Tcp:" in line]
    return int(values.split()[names.split().index("InSegs")])


def test_a_flood_of_syns_never_reaches_a_backend(places: tuple[Path, Path], tmp_path: Path) -> None:
    entry, attacker = places
    spoofed = [f"198.19.{random.randrange(256)}.{random.randrange(1, 255)}" for _ in range(5000)]
    with netns.inside(entry):
        engine = Engine(tmp_path, msgspec.structs.replace(SETTINGS, listen_address="0.0.0.0"))
    try:
        with netns.inside(entry):
            ports = serve_site(engine)
        assert engine.ask(ports.http, ClientRequest(host=PLAIN)).status == 200
        before = engine.backends.connections
        with netns.inside(entry):
            received = _segments_received()
        with netns.inside(attacker):
            sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        with sender:
            statuses = set()
            for number, source in enumerate(spoofed):
                packet = _syn(source, "198.18.0.1", (random.randrange(1024, 65536), ports.http))
                sender.sendto(packet, ("198.18.0.1", 0))
                if number % 250 == 0:
                    statuses.add(engine.ask(ports.http, ClientRequest(host=PLAIN)).status)
        with netns.inside(entry):
            assert _segments_received() - received >= len(spoofed)
        assert statuses == {200}
        assert engine.backends.connections <= before + 1
        assert not engine.backends.peers & set(spoofed)
        assert engine.backends.requests == {WEB: 21}
    finally:
        engine.close()


def test_hosts_are_open_to_connections_of_other_names(site: Site) -> None:
    answer = site.engine.ask(site.ports.https, ClientRequest(host=PLAIN, server_name=SECURE))
    assert answer.status == 200, "Ingress allows another host on a connection of TLS"
    answer = site.engine.ask(site.ports.http, ClientRequest(host=SECURE))
    assert answer.status == 308


def test_the_proxy_protocol_tells_the_address_of_a_client() -> None:
    with TemporaryDirectory(prefix="gw") as directory:
        engine = Engine(Path(directory), with_defaults(SETTINGS, read_defaults({"use-proxy-protocol": "true"})[0]))
        try:
            ports = serve_site(engine)
            asked = f"GET / HTTP/1.1\r\nHost: {PLAIN}\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
            second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes((192, 0, 2, 7, 127, 0, 0, 1, 4, 210, 0, 80))
            for header in (b"PROXY TCP4 192.0.2.7 127.0.0.1 1234 80\r\n", second):
                answer = _answer_to(ports.http, header + asked.encode())
                headers = json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]
                assert (headers["x-real-ip"], headers["x-forwarded-for"]) == ("192.0.2.7", "192.0.2.7")
            before = engine.backends.requests.total()
            assert _answer_to(ports.http, asked.encode()) == b"", "a connection without the header is closed"
            assert engine.backends.requests.total() == before
        finally:
            engine.close()


def _answer_to(port: int, data: bytes) -> bytes:
    """Everything that the engine sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        try:
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionResetError:
            return b""

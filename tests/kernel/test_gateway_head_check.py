"""The filter in front of a real Envoy that refuses heads: it follows streams as Envoy does, and changes no body.

Streams of several requests arrive in any portions. Envoy answers some of the requests at once, while their bytes are
still in its buffer (a host that it does not know), and others when the backend has answered.
"""

import random
import re
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.kernel.gateway_raw_backend import Site, raw_entry, raw_site, requests_of

from podwire.gateway.envoy import headcheck
from podwire.gateway.envoy.headcheck import head_check

HOST = b"web.example"
BODY = b"a\rb\r\n c\r\n\r\nGET /forged HTTP/1.1\r\nX: \r\r\n\r\n"
"""A body that a reader of heads would refuse."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with raw_site({HOST.decode(): 0}, access_log="") as opened:
        yield opened


def _request(target: str, lines: bytes = b"", body: bytes = b"", host: bytes = HOST) -> bytes:
    method = b"POST" if body else b"GET"
    return b"%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n%s" % (method, target.encode(), host, lines, body)


def _chunked(body: bytes, size: int) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;a=b\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nX-Trailer: a\r\n\r\n"


def _portions(choices: random.Random, data: bytes) -> list[bytes]:
    places = sorted(choices.sample(range(1, len(data)), min(choices.randrange(8), len(data) - 1)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def _answers(site: Site, portions: list[bytes], expected: int, pause_s: float = 0.002) -> list[int]:
    """The statuses of the answers to a stream, whose portions come one after another, with pauses."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        for portion in portions:
            connection.sendall(portion)
            time.sleep(pause_s)
        while len(_statuses(received)) < expected and (data := connection.recv(65536)):
            received += data
        return _statuses(received)


def _statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


class Kind(NamedTuple):
    """A request, the status of its answer, and the target and the body with which it reaches the backend."""

    data: bytes
    status: int
    target: str = ""
    body: bytes = b""


def _kinds(choices: random.Random, name: str, count: int) -> list[Kind]:
    """Requests of a stream. After an answer of its own behind one of the backend, Envoy closes the connection."""
    kinds = [_choose(choices, f"{name}-{number}") for number in range(count)]
    unknown = [
        Kind(_request("/" * number, host=b"nobody.example"), 404) for number in range(1, 1 + choices.randrange(4))
    ]
    return unknown + kinds


def _choose(choices: random.Random, name: str) -> Kind:
    target, body = f"/{name}", BODY * choices.choice([1, 1, 1, 400])
    kind = choices.randrange(4)
    if kind == 0:
        return Kind(b"\r\n" + _request(target), 200, target)
    if kind == 1:
        return Kind(_request(target, b"Content-Length: %d\r\n" % len(body), body), 200, target, body)
    if kind == 2:
        size = choices.choice([1, 7, 40, 20_000]) if len(body) < 1000 else 20_000
        return Kind(_request(target, b"Transfer-encoding: \t Chunked\r\n", _chunked(body, size)), 200, target, body)
    return Kind(_request(target, b"X-A: b\r\nX-Long: %s\r\n" % (b"x" * choices.choice([1, 5000]))), 200, target)


def _received(site: Site) -> dict[str, bytes]:
    """Requests that the backend has got, by target, with their bodies as they were sent."""
    requests = [requests_of(bytes(stream)) for stream in site.backend.received]
    found = {}
    for request in [request for stream in requests for request in stream]:
        head, _, body = request.partition(b"\r\n\r\n")
        found[head.split()[1].decode()] = _unchunked(body) if b"\r\ntransfer-encoding: chunked" in head else body
    return found


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while (size := int(body.partition(b"\r\n")[0], 16)) > 0:
        start = body.index(b"\r\n") + 2
        whole, body = whole + body[start : start + size], body[start + size + 2 :]
    return whole


@pytest.mark.parametrize("seed", range(40))
def test_streams_of_requests_reach_the_backend_unchanged(site: Site, seed: int) -> None:
    choices = random.Random(seed)
    kinds = _kinds(choices, str(seed), choices.randrange(1, 12))
    data = b"".join(kind.data for kind in kinds)
    statuses = _answers(site, _portions(choices, data), len(kinds))
    assert statuses == [kind.status for kind in kinds]
    received = _received(site)
    assert {kind.target: received[kind.target] for kind in kinds if kind.target} == {
        kind.target: kind.body for kind in kinds if kind.target
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_bad_head_among_requests_is_refused_in_its_turn(site: Site, seed: int) -> None:
    choices = random.Random(seed)
    kinds = _kinds(choices, f"bad-{seed}", choices.randrange(6))
    bad = choices.choice(
        [
            b"GET /bad HTTP/1.1\r\nHost: web.example\r\nX-A: b\rc\r\n\r\n",
            b"GET /bad HTTP/1.1\r\nHost: web.example\r\nX-A: b\r\n c\r\n\r\n",
            b"GET /bad HTTP/1.1\r\nHost: web.example\r\nX-A: b\r\n\r",
            b"GET /b\rad HTTP/1.1\r\nHost: web.example\r\n\r\n",
            b"\rGET /bad HTTP/1.1\r\nHost: web.example\r\n\r\n",
        ]
    )
    data = b"".join(kind.data for kind in kinds) + bad + _request("/behind")
    statuses = _answers(site, _portions(choices, data), len(kinds) + 1)
    assert statuses == [*(kind.status for kind in kinds), 400]
    assert not {"/bad", "/b", "/behind"} & _received(site).keys()


@pytest.mark.parametrize("count", range(1, 6))
def test_a_head_behind_answers_of_the_engine_is_checked(site: Site, count: int) -> None:
    """The engine answers all whole requests at once; the begin of the next one comes with them."""
    unknown = b"".join(_request("/" * number, host=b"nobody.example") for number in range(1, count + 1))
    for behind, status in ((_request("/\rc"), 400), (_request("/c"), 200)):
        assert _answers(site, [unknown + behind[:5], behind[5:]], count + 1) == [404] * count + [status]


def test_a_folded_line_is_refused(site: Site) -> None:
    for fold in (b" ", b"\t"):
        assert _answers(site, [_request("/", b"X-A: b\r\n%sc\r\n" % fold)], 1) == [400]
        assert _answers(site, [_request("/", b"%sX-A: b\r\n" % fold)], 1) == [400]


@pytest.mark.parametrize(
    ("lines", "statuses"),
    [
        (b"Upgrade: websocket\r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: websocket\r\nConnection: keep-alive, UPGRADE\r\n", None),
        (b"Upgrade: websocket\r\nConnection: keep-alive\r\nConnection: upgrade\r\n", None),
        (b"Upgrade: websocket\r\nConnection: keep-alive\r\n", [200, 400]),
        (b"Connection: Upgrade\r\n", [200, 400]),
        (b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n", [200, 400]),
    ],
)
def test_bytes_behind_an_upgrade_are_no_heads(site: Site, lines: bytes, statuses: list[int] | None) -> None:
    behind = b"GET /\rbehind HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(_request("/", lines))
        received = connection.recv(65536)
        connection.sendall(behind)
        if statuses is not None:
            received += connection.recv(65536)
            assert _statuses(received) == statuses
            return
        deadline = time.monotonic() + 20
        while behind not in b"".join(bytes(stream) for stream in site.backend.received):
            assert time.monotonic() < deadline, site.backend.received
            time.sleep(0.01)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: +3\r\n",
        b"Content-Length: 3, 3\r\n",
        b"Content-Length: 3\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Content-Length : 3\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: \r\n",
    ],
)
def test_a_length_that_is_none_is_refused(site: Site, lines: bytes) -> None:
    assert _answers(site, [b"POST / HTTP/1.1\r\nHost: web.example\r\n%s\r\nabc" % lines], 1) == [400]


@pytest.mark.parametrize(
    "lines",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
    ],
)
def test_other_transfer_codings_are_refused(site: Site, lines: bytes) -> None:
    assert _answers(site, [b"POST / HTTP/1.1\r\nHost: web.example\r\n%s\r\n0\r\n\r\n" % lines], 1) == [501]


_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_LENIENT = [
    ("a coding with spaces", b"Transfer-Encoding:chunked \t\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
    ("a length with a zero", b"Content-Length: 03\r\n", b"abc"),
    ("a length with spaces", b"Content-Length:3\t \r\n", b"abc"),
    ("no length by name", b"Content_Length: 3\r\n", b""),
    ("a connection that is no upgrade", b"Upgrade: websocket\r\nConnection: xupgrade\r\n", b""),
    ("no value", b"X-A:\r\n", b""),
    ("bytes that are no text", b"X-A: \xff\xfe\r\n", b""),
    ("a line that ends with a line feed", b"X-A: b\n", b""),
    ("a size with a space", _CHUNKED, b"3 \r\nabc\r\n0\r\n\r\n"),
    ("a size with zeros", _CHUNKED, b"000000000000000000003\r\nabc\r\n0000\r\n\r\n"),
    ("more behind a chunk", _CHUNKED, b"3\r\nabcX\r\n0\r\n\r\n"),
    ("extensions", _CHUNKED, b'3;x="a b"\r\nabc\r\n0;y\r\nA: b\r\nB: c\r\n\r\n'),
    ("a length in trailers", _CHUNKED, b"3\r\nabc\r\n0\r\nContent-Length: 5\r\nHost: x\r\nHost: y\r\n\r\n"),
]
"""Requests that Envoy serves though they are unusual: their names, lines and bodies."""


@pytest.mark.parametrize(("lines", "body"), [case[1:] for case in _LENIENT], ids=[case[0] for case in _LENIENT])
def test_the_head_behind_an_unusual_request_is_found(site: Site, lines: bytes, body: bytes) -> None:
    first = b"POST / HTTP/1.1\r\nHost: web.example\r\n%s\r\n%s" % (lines, body)
    assert _answers(site, [first, _request("/", b"X-A: b\rc\r\n")], 2) == [200, 400]
    assert _answers(site, [first, _request("/", b"X-A: b\r\n")], 2) == [200, 200]
    assert _answers(site, [first + _request("/", b"X-A: b\rc\r\n")], 2) == [200, 400]


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_arrive_during_an_answer_are_read_once(site: Site, seed: int) -> None:
    """They stay in Envoy's buffer until the answer is complete, and pass the filter again, with what follows."""
    choices, first = random.Random(seed), _request("/", b"Content-Length: 3\r\n", b"abc")
    for _ in range(200):
        body, is_good = BODY * choices.choice([1, 3, 200]), choices.random() < 0.5
        data = _request("/", b"Content-Length: %d\r\n" % len(body), body) if choices.random() < 0.5 else b""
        expected = [200, *([200] if data else []), 200 if is_good else 400]
        data += _request("/", b"X-A: b\r\n" if is_good else b"X-A: b\rc\r\n")
        cuts = sorted(choices.sample(range(1, len(data)), choices.randrange(3)))
        portions = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        pause_s = choices.choice([0, 0.0005, 0.001])
        assert _answers(site, [first, *portions], len(expected), pause_s) == expected


_BAD = _request("/bad", b"X-A: b\rc\r\n")


def test_bytes_that_repeat_a_begun_request_are_read(site: Site) -> None:
    """A reader that took them for the same ones once more would count the body wrong, and miss the next head."""
    head = b"POST / HTTP/1.1\r\nHost: web.example\r\nContent-Length: %d\r\n\r\n"
    piece = head % (40 + len(head % 100) + 40) + b"x" * 40
    for pause_s in (0.002, 0.05):
        assert _answers(site, [_request("/"), piece, piece, _BAD], 3, pause_s) == [200, 200, 400]
        assert _answers(site, [_request("/"), piece, piece, _request("/")], 3, pause_s) == [200, 200, 200]


@pytest.mark.parametrize(
    "lines",
    [b"\n" * 96, b"\r\n" * 96, b"\n" * 64 + b"\r\n" * 32, b"\r\n" * 500, b"\n"],
    ids=["line feeds", "pairs", "both", "many", "one"],
)
@pytest.mark.parametrize("seed", range(3))
def test_empty_lines_of_a_client_are_no_marks(site: Site, lines: bytes, seed: int) -> None:
    choices, first = random.Random(seed), _request("/", b"Content-Length: 3\r\n", b"abc")
    for _ in range(20):
        data = b"".join(choices.choice([first, first[:-3] + lines[:3].ljust(3), lines + first]) for _ in range(4))
        for behind, status in ((_BAD, 400), (_request("/good"), 200)):
            portions = [first, *_portions(choices, data + lines), lines + behind]
            assert _answers(site, portions, 6, choices.choice([0, 0.0005])) == [200] * 5 + [status]


def test_a_hundred_requests_that_wait_are_answered(site: Site) -> None:
    requests = b"".join(_request(f"/pipelined-{number}") for number in range(100))
    assert _answers(site, [requests[:5000], requests[5000:] + _BAD], 101) == [200] * 100 + [400]
    assert {f"/pipelined-{number}" for number in range(100)} <= _received(site).keys()


def test_a_client_that_waits_for_100_continue_is_served(site: Site) -> None:
    lines = b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(BODY)
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(_request("/before") + _request("/waits", lines, BODY)[: -len(BODY)])
        received = b""
        while len(_statuses(received)) < 2:
            received += connection.recv(65536)
        connection.sendall(BODY + _request("/after"))
        while len(_statuses(received)) < 4:
            received += connection.recv(65536)
    assert _statuses(received) == [200, 100, 200, 200]


def test_a_preface_in_two_portions_is_no_way_around(site: Site) -> None:
    behind = b"GET / HTTP/1.1\r\nHost: web.example\r\nX-A: b\rc\r\n\r\n"
    for preface in (b"PRI * HTTP/2.0\r\n\r\n", b"PRI * HTTP/2\r\n\r\n"):
        assert _answers(site, [preface[:5], preface[5:] + behind], 1) == [400]


def test_many_connections_at_once_are_told_apart(site: Site) -> None:
    connections = [socket.create_connection(("127.0.0.1", site.port), timeout=20) for _ in range(300)]
    bad = set(range(0, 300, 7))
    request = _request("/", b"X-A: b\r\n")
    for connection in connections:
        connection.sendall(request[:-3])
    for number, connection in enumerate(connections):
        connection.sendall(b"\r" if number in bad else request[-3:])
    for number in bad:
        connections[number].sendall(b"\r")
    for number, connection in enumerate(connections):
        with connection:
            assert _statuses(connection.recv(65536)) == [400 if number in bad else 200]


def _section(kind: int, *items: bytes) -> bytes:
    """A section of a WebAssembly module, with its number of items; everything is shorter than 128 bytes."""
    body = bytes((len(items),)) + b"".join(items)
    return bytes((kind, len(body))) + body


def _export(name: bytes, kind: int, index: int) -> bytes:
    return bytes((len(name),)) + name + bytes((kind, index))


def _failing_program() -> bytes:
    """A filter that fails with the first bytes of each connection."""
    nothing, i32, unreachable = b"\x02\0\x0b", b"\x7f", b"\x03\0\0\x0b"
    return b"\0asm\1\0\0\0" + b"".join(
        (
            _section(1, b"\x60\0\0", b"\x60\1" + i32 + b"\1" + i32, b"\x60\3" + i32 * 3 + b"\1" + i32),
            _section(3, b"\0", b"\1", b"\2"),
            _section(5, b"\0\1"),
            _section(
                7,
                _export(b"memory", 2, 0),
                _export(b"proxy_abi_version_0_2_1", 0, 0),
                _export(b"malloc", 0, 1),
                _export(b"proxy_on_downstream_data", 0, 2),
            ),
            _section(10, nothing, unreachable, unreachable),
        )
    )


def test_no_request_passes_a_filter_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    head_check.cache_clear()
    monkeypatch.setattr(headcheck, "compiled", _failing_program)
    try:
        with raw_site({HOST.decode(): 0}, access_log="") as site:
            assert not site.engine.refusals
            for _ in range(3):
                assert _answers_or_none(site, _request("/")) == []
            assert not site.backend.received
    finally:
        head_check.cache_clear()


def test_another_program_takes_over_while_connections_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a gateway of another version begins to feed the engine."""
    program = headcheck.compiled()
    another = program + b"\0\5\4more"  # a section that no machine runs
    with raw_site({HOST.decode(): 0}, access_log="") as site:
        connection = socket.create_connection(("127.0.0.1", site.port), timeout=20)
        with connection:
            for version in (program, another, program):
                monkeypatch.setattr(headcheck, "compiled", lambda version=version: version)
                head_check.cache_clear()
                site.engine.serve(raw_entry(site.port, site.backend.port, {HOST.decode(): 0}))
                for _ in range(5):
                    connection.sendall(_request("/"))
                    answer = connection.recv(65536)
                    assert _statuses(answer) == [200] and b"connection: close" not in answer
                    assert _answers(site, [_request("/"), _request("/", b"X-A: b\rc\r\n")], 2) == [200, 400]
        assert not site.engine.refusals
    head_check.cache_clear()


def _answers_or_none(site: Site, data: bytes) -> list[int]:
    try:
        return _answers(site, [data], 1)
    except ConnectionError:
        return []

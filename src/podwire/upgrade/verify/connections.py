"""What the pods of ``podwire upgrade verify`` do: answer on a port, or try connections; blocking, one thread.

A pod that answers sends one line back over each connection and one datagram for each datagram; in it is the address of
the client as the server sees it. A pod that tries has
some seconds for each connection that should be made, since rules of the node may be written late for a new pod.
"""

import contextlib
import selectors
import socket
from collections.abc import Callable, Sequence

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.errors import ProtocolError
from podwire.runtime.clock import SystemClock
from podwire.upgrade.verify.checks import PORT, CheckResult, ConnectionCheck

_ANSWER = "podwire"
_TRY_S = 1.5
_PAUSE_S = 0.2
PATIENCE_S = 15.0


def serve(port: int = PORT, *, ready: Callable[[], None] = lambda: None) -> None:
    """Answers on a port, of both families where the machine has both; never returns.

    Raises: OSError when the port is taken.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        dual = family == socket.AF_INET6
        listener = stack.enter_context(socket.create_server(("", port), family=family, dualstack_ipv6=dual))
        datagrams = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        if dual:
            datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        datagrams.bind(("", port))
        selector.register(listener, selectors.EVENT_READ)
        selector.register(datagrams, selectors.EVENT_READ)
        ready()
        while True:
            for key, _ in selector.select():
                with contextlib.suppress(OSError):
                    _answer(listener if key.fileobj is listener else datagrams, is_stream=key.fileobj is listener)


def _answer(opened: socket.socket, *, is_stream: bool) -> None:
    if is_stream:
        connection, peer = opened.accept()
        with connection:
            connection.sendall(_line(peer[0]))
    else:
        _, peer = opened.recvfrom(64)
        opened.sendto(_line(peer[0]), peer)


def _line(address: str) -> bytes:
    """The answer to a client; a client of IPv4 has its own form of address, also on a socket of both families."""
    return f"{_ANSWER} {address.removeprefix('::ffff:')}\n".encode()


def attempt(checks: Sequence[ConnectionCheck], patience_s: float = PATIENCE_S) -> list[CheckResult]:
    """Tries each connection until it is as expected, or the time is over; the results in the order of the checks."""
    return [_attempted(check, patience_s) for check in checks]


def _attempted(check: ConnectionCheck, patience_s: float) -> CheckResult:
    clock = SystemClock()
    until = clock.monotonic() + patience_s
    while True:
        problem = _problem(check)
        if not problem or clock.monotonic() > until:
            return CheckResult(kind=check.kind, target=check.target, transport=check.transport, problem=problem)
        with selectors.DefaultSelector() as pause:
            pause.select(_PAUSE_S)


def _problem(check: ConnectionCheck) -> str:
    """Why a connection is not as expected; empty when it is."""
    try:
        if check.transport == "name":
            return _resolved(check)
        if check.transport == "dns":
            return _queried(check)
        answer, own = _exchanged(check)
    except OSError as failure:
        return "" if check.refused else failure.strerror or str(failure) or type(failure).__name__
    if check.refused:
        return "was reached, and should be denied"
    if check.sources:
        return _wrong_source(answer, (*check.sources, *([own] if check.own_source else [])))
    return "" if answer or check.kind == "egress" else "gave no answer"


def _wrong_source(answer: bytes, sources: Sequence[str]) -> str:
    """Why the address that the server saw is not as expected."""
    name, _, address = answer.decode(errors="replace").strip().partition(" ")
    if name != _ANSWER or not address:
        return "did not tell the address that it saw"
    return "" if address in sources else f"saw the address {address}, expected {' or '.join(sources)}"


def _exchanged(check: ConnectionCheck) -> tuple[bytes, str]:
    """The answer of the other side, and the own address; for egress without an observer no answer is awaited."""
    address = (check.address, check.port)
    if check.transport == "tcp":
        with socket.create_connection(address, timeout=_TRY_S) as connection:
            awaited = check.sources or check.kind != "egress"
            return connection.recv(64) if awaited else b"", str(connection.getsockname()[0])
    family = socket.AF_INET6 if ":" in check.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(_TRY_S)
        datagrams.connect(address)
        datagrams.send(b"?")
        return datagrams.recv(64), str(datagrams.getsockname()[0])


def _resolved(check: ConnectionCheck) -> str:
    addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(check.address, None, type=socket.SOCK_STREAM)}
    if check.expected in addresses:
        return ""
    return f"resolves to {', '.join(sorted(addresses))}, expected {check.expected}"


def _queried(check: ConnectionCheck) -> str:
    """A query to the address as to a name server; any answer but a failure of the server is good."""
    query = wire.encode(wire.DnsMessage(1, wire.RD, encode_name(check.expected), wire.A))
    family = socket.AF_INET6 if ":" in check.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(_TRY_S)
        datagrams.connect((check.address, check.port))
        datagrams.send(query)
        answer = datagrams.recv(4096)
    try:
        code = wire.parse_message(answer).rcode
    except ProtocolError as failure:
        return str(failure)
    return (
        "" if code in (wire.NOERROR, wire.NXDOMAIN) else f"the name server answered {wire.RCODE_NAMES.get(code, code)}"
    )

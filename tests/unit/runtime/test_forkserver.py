"""The fork server with real processes: descriptors, exits, death of the owner's side, daemons."""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwire.errors import ClusterError
from podwire.runtime.child import Placement
from podwire.runtime.forkserver import Exit, ForkServer


def _echo(payload: bytes) -> None:
    with socket.socket(fileno=3) as out:
        out.sendall(payload + b" " + bytes(Path("/proc/self/fd/4").readlink()))


def _fail(payload: bytes) -> None:
    raise ValueError(payload.decode())


def _leave(payload: bytes) -> None:
    raise SystemExit(int(payload))


def _wait(payload: bytes) -> None:
    if payload:
        print("waiting", payload.decode(), flush=True)  # noqa: T201
    signal.pause()


def _descriptors(payload: bytes) -> None:
    Path(payload.decode()).write_text(" ".join(sorted(p.name for p in Path("/proc/self/fd").iterdir())))


@pytest.fixture
def server() -> Iterator[ForkServer]:
    created = ForkServer.start(
        {"echo": _echo, "fail": _fail, "leave": _leave, "wait": _wait, "descriptors": _descriptors},
        title="pwt-forkserver",
    )
    yield created
    created.close()


def _exits(server: ForkServer, count: int) -> list[Exit]:
    exits: list[Exit] = []
    until = time.monotonic() + 60
    while len(exits) < count and time.monotonic() < until:
        select.select([server.fileno()], [], [], 1)
        exits += server.read_exits() or []
    return exits


def _eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_child_gets_payload_and_descriptors_in_order(server: ForkServer, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with (tmp_path / "given").open("w") as value, ours, theirs:
        payload = b"x" * 300_000
        pid = server.spawn("echo", payload, [theirs.fileno(), value.fileno()])
        theirs.close()
        received = b""
        while piece := ours.recv(1 << 16):
            received += piece
    assert received == payload + b" " + str(tmp_path / "given").encode()
    assert _exits(server, 1) == [Exit(pid, 0)]


def test_exit_codes_and_signals_are_reported(server: ForkServer, tmp_path: Path) -> None:
    log = Placement(log=str(tmp_path / "log"))
    failed = server.spawn("fail", b"oh no", placement=log)
    remaining = server.spawn("leave", b"7")
    killed = server.spawn("wait")
    os.kill(killed, signal.SIGKILL)
    assert dict(_exits(server, 3)) == {failed: 1, remaining: 7, killed: -9}
    assert "ValueError: oh no" in (tmp_path / "log").read_text()


def test_no_descriptor_leaks_into_a_child(server: ForkServer, tmp_path: Path) -> None:
    os.set_inheritable(held := os.open("/dev/null", os.O_RDONLY), True)
    server.spawn("descriptors", str(tmp_path / "fds").encode())
    _exits(server, 1)
    os.close(held)
    assert (tmp_path / "fds").read_text() == "0 1 2 3"  # 3 is the listing itself


def test_title_shows_in_comm_and_command_line(server: ForkServer) -> None:
    pid = server.spawn("wait", placement=Placement(title="pwt child"))
    assert _eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "pwt child\n")
    assert _eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == b"pwt child")
    os.kill(pid, signal.SIGTERM)
    assert _exits(server, 1) == [Exit(pid, -15)]


def test_unknown_entry_is_an_error_and_the_server_goes_on(server: ForkServer) -> None:
    with pytest.raises(ClusterError, match="cannot start nothing: no such entry; expected one of"):
        server.spawn("nothing")
    assert server.spawn("leave", b"0") > 0


def test_daemons_outlive_the_server_and_others_do_not(tmp_path: Path) -> None:
    server = ForkServer.start({"wait": _wait})
    log = tmp_path / "log"
    stays = server.spawn("wait", b"a", placement=Placement(daemon=True, log=str(log)))
    goes = server.spawn("wait", b"b", placement=Placement(log=str(log)))
    assert _eventually(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
    os.kill(server.pid, signal.SIGKILL)
    server.close()
    assert _eventually(lambda: not _alive(goes))
    assert _alive(stays)
    os.kill(stays, signal.SIGKILL)
    with pytest.raises(ClusterError, match="the fork server has ended"):
        server.spawn("wait")


def test_server_preparation_reaches_children_but_not_the_owner(tmp_path: Path) -> None:
    here: list[str] = []

    def tell(payload: bytes) -> None:
        Path(payload.decode()).write_text(" ".join(here))

    def prepare() -> Iterator[None]:
        here.append("half")
        yield
        here.append("prepared")

    server = ForkServer.start({"tell": tell}, title="pwt-forkserver", prepare={"tell": prepare})
    try:
        server.spawn("tell", bytes(tmp_path / "told"))
        assert _exits(server, 1)[0].code == 0
        assert (tmp_path / "told").read_text() == "half prepared"
        assert here == []
    finally:
        server.close()


def prepared_for_first(folder: Path) -> tuple[str, str]:
    """What is prepared in the children of "first" and "second", requested in this order.

    The preparation of "second" waits until the child of "first" has run. An idle server may begin it before the first
    request comes; it gives up after two seconds then.
    """
    done: list[str] = []
    report = folder / "report"

    def tell(payload: bytes) -> None:
        report.with_suffix(".new").write_text(" ".join(done))
        report.with_suffix(".new").rename(report)

    def first() -> Iterator[None]:
        done.append("first")
        yield

    def second() -> Iterator[None]:
        until = time.monotonic() + 2
        while not report.exists() and time.monotonic() < until:
            time.sleep(0.01)
        done.append("second")
        yield

    server = ForkServer.start({"first": tell, "second": tell}, prepare={"first": first, "second": second})
    try:
        server.spawn("first")
        assert _eventually(report.exists)
        of_first = report.read_text()
        server.spawn("second")
        assert _eventually(lambda: "second" in report.read_text())
        return of_first, report.read_text()
    finally:
        server.close()


def test_entry_waits_only_for_its_own_preparation(tmp_path: Path) -> None:
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        of_first, of_second = prepared_for_first(folder)
        assert of_second == "first second"
        if of_first == "first":
            return
    pytest.fail("the first entry always waits for the preparation of the second one")

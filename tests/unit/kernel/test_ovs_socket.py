"""JSON-RPC to the sockets of Open vSwitch, against a socket that answers as a test says."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import ovs
from podwire.kernel.ovs_socket import request
from podwire.runtime.unixsockets import listen


@contextmanager
def answering(folder: Path, *chunks: bytes) -> Iterator[list[bytes]]:
    """Answers one connection with the chunks; yields the list that gets the request."""
    requests: list[bytes] = []
    listener = listen(folder / "db.sock")
    listener.setblocking(True)
    listener.settimeout(20)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(1 << 16))
            for chunk in chunks:
                connection.sendall(chunk)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield requests
        thread.join()


def test_an_answer_in_several_chunks_is_read_whole(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    answer = json.dumps({"id": 0, "result": {"rows": [{"a": 1}, {"b": "}"}]}, "error": None}).encode()
    with answering(folder, answer[:30], answer[30:52], answer[52:] + b"\n") as requests:
        assert request(str(folder), "db.sock", "transact", ["x"]) == {"rows": [{"a": 1}, {"b": "}"}]}
    assert json.loads(requests[0]) == {"method": "transact", "params": ["x"], "id": 0}


def test_a_refusal_is_an_error_with_its_words(tmp_path: Path) -> None:
    with (
        answering(tmp_path, b'{"id": 0, "result": null, "error": "no such bridge\\n"}'),
        pytest.raises(KernelError, match=r"bridge/dump-flows in ovs .*: errno 22 \(Invalid argument: no such bridge\)"),
    ):
        request(str(tmp_path), "db.sock", "bridge/dump-flows", ["b"])


def test_a_connection_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with answering(tmp_path, b'{"id": 0,'), pytest.raises(KernelError, match="its process does not answer"):
        request(str(tmp_path), "db.sock", "version")


def test_a_switch_without_processes_is_no_switch(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound):
        request(str(tmp_path / "nowhere"), "db.sock", "version")
    listen(tmp_path / "vswitchd.ctl").close()  # the socket of a process that was killed
    with pytest.raises(KernelNotFound):
        request(str(tmp_path), "vswitchd.ctl", "version")
    assert ovs.read(None, [str(tmp_path)]) == ()

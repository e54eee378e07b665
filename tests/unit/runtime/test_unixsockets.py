"""Listening Unix sockets at paths."""

import socket
import stat
from pathlib import Path

from podwire.runtime.unixsockets import LONGEST, listen, too_long


def test_longest_path_accepts_a_client(tmp_path: Path) -> None:
    name = "s" * (LONGEST - len(str(tmp_path)) - 1)
    path = tmp_path / name
    assert not too_long(path)
    with listen(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert too_long(Path(f"{path}s"))


def test_socket_replaces_the_file_that_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listen(path).close()
    with listen(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listener.accept()
        accepted.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.sock"]

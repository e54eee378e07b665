"""Listening Unix sockets at paths.

The kernel's address of a Unix socket holds a path of at most 107 bytes (``sun_path``, unix(7)). A server can bind a
longer path through a descriptor of its directory, but ordinary clients (curl, the CNI plugin) could not connect.
"""

import os
import socket
from pathlib import Path

LONGEST = 107
"""Bytes of the longest path to which every client can connect."""


def too_long(path: Path) -> str:
    """Why clients could not connect to a socket at the path; empty when they could."""
    size = len(os.fsencode(path))
    return "" if size <= LONGEST else f"the socket's path {path} has {size} bytes; expected at most {LONGEST}"


def answers(path: Path) -> bool:
    """Whether a process accepts connections at a path; False as well when nobody may connect or the path is missing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def listen(path: Path, backlog: int = 128) -> socket.socket:
    """A listening socket that replaces any file at the path; at no time can other users connect.

    Raises: OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{fresh.name}")
        fresh.chmod(0o600)
        listener.listen(backlog)
        fresh.replace(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener

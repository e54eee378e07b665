"""The virtual servers of one network namespace as ``/proc/net/ip_vs`` lists them: one reading for all of them.

Netlink needs one request for each virtual server to list its real servers. The file has them all, but not all settings.
To parse and compare 500 virtual servers with two real servers each takes 1 ms, without the kernel's part.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import NamedTuple

from podwire.kernel import netns
from podwire.kernel.netns import NetnsPath
from podwire.state.ipvs import Key, VirtualServer

_PATH = "/proc/thread-self/net/ip_vs"
_CHUNK = 1 << 16
_HEAD = 3
"""Lines before the first virtual server."""


class ListedServer(NamedTuple):
    """What the file has of a virtual server."""

    scheduler: str
    destinations: frozenset[tuple[str, str]]
    """Endpoint and weight, as the file prints them."""


class IpvsTable:
    """The open file of one network namespace (None: that of the calling thread)."""

    def __init__(self, netns_path: NetnsPath) -> None:
        """A kernel without the file is no error: :meth:`read` returns None."""
        with netns.inside(netns_path):
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC) if Path(_PATH).exists() else None

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self) -> dict[str, ListedServer] | None:
        """The virtual servers by their :func:`listed_key`; those of packet marks under other keys."""
        if self._fd is None:
            return None
        os.lseek(self._fd, 0, os.SEEK_SET)
        return parse(b"".join(iter(lambda: os.read(self._fd or 0, _CHUNK), b"")).decode("ascii"))


def parse(text: str) -> dict[str, ListedServer]:
    """The virtual servers in the text of the file."""
    servers: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    own: list[tuple[str, str]] = []
    for line in text.splitlines()[_HEAD:]:
        fields = line.split()
        if fields[0] == "->":
            own.append((fields[1], fields[3]))
        else:
            own = []
            servers[f"{fields[0]} {fields[1]}"] = (fields[2], own)
    return {key: ListedServer(scheduler, frozenset(own)) for key, (scheduler, own) in servers.items()}


@lru_cache(maxsize=1 << 14)
def listed_key(key: Key) -> str:
    """Protocol and endpoint of a virtual server, as the file prints them."""
    return f"{key.protocol.upper()} {_endpoint(key.address, key.port)}"


@lru_cache(maxsize=1 << 14)
def listed(server: VirtualServer) -> ListedServer:
    """What the file has of a virtual server that the kernel holds as it is here."""
    return ListedServer(server.scheduler, frozenset(_destinations(server)))


def _destinations(server: VirtualServer) -> Iterator[tuple[str, str]]:
    return (
        (_endpoint(destination.address, destination.port), str(destination.weight))
        for destination in server.destinations
    )


def _endpoint(address: str, port: int) -> str:
    parsed = ip_address(address)
    text = f"{int(parsed):08X}" if isinstance(parsed, IPv4Address) else f"[{parsed.exploded}]"
    return f"{text}:{port:04X}"

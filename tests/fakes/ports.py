"""Ports of the loopback address that are free."""

import socket

_given: set[int] = set()
"""Ports that are already promised: the kernel offers a port again until somebody listens on it."""


def free_port() -> int:
    """A port that is free for UDP and TCP, another one with each call."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            port = int(tcp.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port

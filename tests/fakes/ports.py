"""Ports of the loopback address that are free."""

import socket


def free_port() -> int:
    """A port that is free for UDP and TCP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            return int(tcp.getsockname()[1])

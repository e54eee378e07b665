"""A command of podwire for shells: a small program that has the command run as a fork of the warm process.

Usage: ``python -IS warm_client.py ADDRESS podwire ARGUMENT ...``. The command has the standard streams, the environment
and the working directory of this program, which ends with the command's status. A signal that ends this program kills
the command. A start needs 20 ms of processor time besides those of the fork, the program itself 50 to 250 ms.
"""

import json
import os
import signal
import socket
import sys


def main(address: str, *arguments: str) -> int:
    """The exit status of the command."""
    receives, sends = os.pipe()
    order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - pathlib takes 5 ms
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(order).encode()], (0, 1, 2, sends))
        pid = int(connection.recv(32))

        def end(number: int, _: object) -> None:
            os.kill(pid, signal.SIGKILL)  # the command ends with it
            os._exit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        connection.send(b"-")
    os.close(sends)
    status = int(os.read(receives, 8) or -signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

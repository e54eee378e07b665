"""A holder and its workers, as real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

_PROGRAM = """
import os, signal, socket, sys, time
from podwire.runtime.keeper import keep_worker
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], os.getpid(), flush=True)
keep_worker()
end = {"leave": lambda: os._exit(3), "kill": lambda: os.kill(os.getpid(), 9), "wait": lambda: time.sleep(60)}
while True:
    asked, peer = server.recvfrom(100)
    if asked in (b"leave", b"kill", b"wait"):
        end[asked.decode()]()
    server.sendto(str(os.getpid()).encode(), peer)
"""


class Held:
    """The program above with a client."""

    def __init__(self) -> None:
        arguments = [sys.executable, "-c", _PROGRAM]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port, self.holder = map(int, self.process.stdout.readline().split())
        self.client = socket.socket(type=socket.SOCK_DGRAM)
        self.client.settimeout(60)
        self.client.connect(("127.0.0.1", port))

    def say(self, word: str) -> None:
        self.client.send(word.encode())

    def ask(self) -> int:
        """The process that answers."""
        self.say("who")
        return int(self.client.recv(100))

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def held() -> Iterator[Held]:
    created = Held()
    yield created
    created.close()


def test_next_worker_answers_what_a_dying_one_missed(held: Held) -> None:
    first = held.ask()
    assert first != held.holder
    for _ in range(3):
        held.say("kill")
        assert held.ask() != first
    assert held.process.poll() is None


def test_a_worker_that_ends_ends_the_holder_with_its_status(held: Held) -> None:
    held.say("leave")
    assert held.process.wait(60) == 3


def test_a_signal_to_the_holder_ends_both(held: Held) -> None:
    worker = held.ask()
    held.process.send_signal(signal.SIGTERM)
    assert held.process.wait(60) == 128 + signal.SIGTERM
    assert not _alive(worker)


def test_a_signal_while_there_is_no_worker_ends_the_holder(held: Held) -> None:
    for _ in range(4):  # the delay before the next one grows to some tenths of a second
        held.ask()
        held.say("kill")
    deadline = time.monotonic() + 60
    while _children(held.holder) and time.monotonic() < deadline:
        time.sleep(0.002)
    held.process.send_signal(signal.SIGTERM)
    assert held.process.wait(60) == 128 + signal.SIGTERM
    assert not _children(held.holder)


def test_a_worker_dies_with_its_holder(held: Held) -> None:
    worker = held.ask()
    os.kill(held.holder, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(worker)


def _children(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

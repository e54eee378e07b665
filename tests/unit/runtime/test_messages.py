"""Messages on a stream socket: round trip, descriptors, and connections that end too early."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.runtime import messages

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_body_and_descriptors_arrive(pair: Pair) -> None:
    left, right = pair
    reader, writer = os.pipe()
    messages.send(left, b"first", [writer])
    messages.send(left, b"")
    os.close(writer)
    body, fds = messages.receive(right, 3)
    assert body == b"first"
    os.write(fds[0], b"through the descriptor")
    os.close(fds[0])
    assert os.read(reader, 100) == b"through the descriptor"
    os.close(reader)
    assert messages.receive(right) == (b"", [])


@pytest.mark.parametrize("length", [0, 2, 4, 6])
def test_connection_that_ends_inside_a_message_is_an_error(pair: Pair, length: int) -> None:
    left, right = pair
    left.sendall(messages.frame(b"text")[:length])
    left.close()
    with pytest.raises(EOFError):
        messages.receive(right)


def test_descriptors_of_an_incomplete_message_are_closed(pair: Pair) -> None:
    left, right = pair
    reader, writer = os.pipe()
    socket.send_fds(left, [messages.frame(b"text")[:5]], [writer])
    os.close(writer)
    left.close()
    with pytest.raises(EOFError):
        messages.receive(right, 1)
    assert os.read(reader, 1) == b"", "the received end of the pipe is still open"
    os.close(reader)


def test_a_receiver_may_close_as_soon_as_it_has_all() -> None:
    left, right = socket.socketpair()

    class HastyPeer(socket.socket):
        """The sender's end; the receiver has taken all and closed before a send returns."""

        def sendmsg(self, *arguments: Any) -> int:
            sent = super().sendmsg(*arguments)
            received.append(messages.receive(right, 1))
            right.close()
            return sent

    received: list[tuple[bytes, list[int]]] = []
    with HastyPeer(fileno=left.detach()) as sender:
        messages.send(sender, b"text", [sender.fileno()])
    ((body, (fd,)),) = received
    assert body == b"text"
    os.close(fd)


@given(st.lists(st.binary(max_size=40), max_size=5), st.data())
def test_messages_are_split_at_any_boundary(bodies: list[bytes], draw: st.DataObject) -> None:
    data = b"".join(map(messages.frame, bodies))
    cut = draw.draw(st.integers(0, len(data)))
    first, rest = messages.split(data[:cut])
    second, end = messages.split(rest + data[cut:])
    assert first + second == bodies
    assert end == b""

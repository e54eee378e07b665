"""Standard input, output and errors of one container, on the side of its shim.

Output goes to the log file and to every attached client. A client that does not read loses output; the container is
never delayed.
"""

import os
import pty
from typing import NamedTuple

from podwire.embedded.kubelet.containerlog import LogWriter
from podwire.embedded.kubelet.orders import ContainerOrder
from podwire.embedded.kubelet.selectloop import SelectLoop
from podwire.runtime.clock import Clock

_CHUNK = 1 << 16
_LAST_READS = 64
"""Reads of one stream after its container has ended: a process that the container left behind may write for ever."""


class StdioPipes(NamedTuple):
    """Both ends of a container's streams; ``container`` is its input, output and errors.

    With a terminal, input and output of the shim are one descriptor. ``input`` is -1 for a container without input.
    """

    container: tuple[int, int, int]
    input: int
    outputs: dict[int, str]
    """Stream name by descriptor."""


def open_stdio(order: ContainerOrder) -> StdioPipes:
    """New pipes, or a terminal, for one run of a container.

    Raises: OSError.
    """
    if order.tty:
        master, slave = pty.openpty()
        return StdioPipes((slave, slave, slave), master, {master: "stdout"})
    stdin_in, stdin_out = os.pipe() if order.stdin else (os.open("/dev/null", os.O_RDONLY), -1)
    out_in, out_out = os.pipe()
    err_in, err_out = os.pipe()
    return StdioPipes((stdin_in, out_out, err_out), stdin_out, {out_in: "stdout", err_in: "stderr"})


class ContainerStreams:
    """The shim's ends of the streams of one run."""

    def __init__(
        self, order: ContainerOrder, pipes: StdioPipes, log: LogWriter, loop: SelectLoop, clock: Clock
    ) -> None:
        self._order = order
        self._loop = loop
        self._clock = clock
        self._log = log
        self._input = pipes.input
        self._outputs = dict(pipes.outputs)
        self._clients: list[tuple[int, int]] = []
        """Descriptors of each attached client: for output, for errors."""
        for fd in pipes.outputs:
            os.set_blocking(fd, False)
            self._watch_output(fd)

    def attach(self, fds: list[int]) -> None:
        """Copies output to ``fds[0]`` and errors to ``fds[1]``, and feeds the input from ``fds[2]`` if there is one.

        The caller closes ``fds``. Raises: OSError.
        """
        client = (os.dup(fds[0]), os.dup(fds[1]))
        for fd in client:
            os.set_blocking(fd, False)
        self._clients.append(client)
        if len(fds) > 2 and self._input >= 0:
            source = os.dup(fds[2])
            self._loop.watch(source, lambda: self._feed(source))

    def close(self) -> None:
        """Copies the output that is left and closes the log, the streams and the attached clients."""
        for fd in tuple(self._outputs):
            for _ in range(_LAST_READS):
                if not self._copy(fd):
                    break
            self._close_output(fd)
        self._log.close(self._clock.now())
        for client in tuple(self._clients):
            self._detach(client)
        self._close_input()

    def _watch_output(self, fd: int) -> None:
        def copy() -> None:
            if self._copy(fd) == b"":
                self._close_output(fd)

        self._loop.watch(fd, copy)

    def _copy(self, fd: int) -> bytes | None:
        """Copies what one read returns: empty at the end of the stream, None when there is nothing at the moment."""
        stream = self._outputs[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # EIO: no process has the terminal open any more.
            return b""
        if data:
            self._log.write(stream, data, self._clock.now())
            for client in tuple(self._clients):
                self._forward(client, stream, data)
        return data

    def _forward(self, client: tuple[int, int], stream: str, data: bytes) -> None:
        try:
            os.write(client[stream == "stderr"], data)
        except BlockingIOError:
            return
        except OSError:
            self._detach(client)

    def _detach(self, client: tuple[int, int]) -> None:
        self._clients.remove(client)
        for fd in client:
            os.close(fd)

    def _close_output(self, fd: int) -> None:
        self._loop.unwatch(fd)
        del self._outputs[fd]
        if fd == self._input:
            self._input = -1
        os.close(fd)

    def _feed(self, source: int) -> None:
        data = os.read(source, _CHUNK)
        try:
            if data and self._input >= 0:
                os.write(self._input, data)
                return
        except OSError:
            pass
        self._loop.unwatch(source)
        os.close(source)
        if self._order.stdin_once and not self._order.tty:
            self._close_input()

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

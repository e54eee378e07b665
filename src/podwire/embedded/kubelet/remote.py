"""Exec and attach over WebSocket, in every form of :mod:`podwire.embedded.kubelet.channels`.

The channels are 0 input, 1 output, 2 errors, 3 the final Status, 4 terminal size. In ``v5.channel.k8s.io`` a client
closes a channel by 255 and its number; in the other forms input cannot be closed. When the program
has ended and its output is sent, the Status with the exit code follows, then the connection ends. When the client
disconnects, a program that exec started is killed; a container that attach joined keeps running.
Source: kubernetes staging/src/k8s.io/apimachinery/pkg/util/remotecommand, client-go/tools/remotecommand.
"""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from podwire.embedded.kubelet.channels import NONE, UNVERSIONED, UNVERSIONED_BASE64, V4, V4_BASE64, V5, Channels
from podwire.embedded.kubelet.descriptors import write_fd
from podwire.embedded.kubelet.orders import ExecOrder, ShimAnswer
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.remoteoutput import RemoteOutput
from podwire.errors import ClusterError
from podwire.http.message import is_true
from podwire.runtime.tasks import TaskSet

PROTOCOLS = (V5, V4, V4_BASE64, UNVERSIONED, UNVERSIONED_BASE64, NONE)

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255


class StreamOptions(msgspec.Struct, frozen=True):
    """The command and the streams that a client requests."""

    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class _Size(msgspec.Struct):
    Width: int = 0
    Height: int = 0


def parse_options(parameters: Iterable[tuple[str, str]]) -> StreamOptions:
    """The query parameters of ``/exec`` or ``/attach``; both spellings of the streams are known.

    A terminal has one output, so ``tty`` switches the separate errors off.

    Raises: ValueError when no stream is requested.
    """
    pairs = list(parameters)
    first = dict(reversed(pairs))
    tty = is_true(first.get("tty"))
    options = StreamOptions(
        command=tuple(value for key, value in pairs if key == "command"),
        stdin=is_true(first.get("stdin", first.get("input"))),
        stdout=is_true(first.get("stdout", first.get("output"))),
        stderr=is_true(first.get("stderr", first.get("error"))) and not tty,
        tty=tty,
    )
    if not (options.stdin or options.stdout or options.stderr):
        raise ValueError("you must specify at least 1 of stdin, stdout, stderr")
    return options


def render_status(code: int | None, problem: str = "") -> bytes:
    """The Status on channel 3; ``code`` is None when the program could not start."""
    if problem or code is None:
        status = {"status": "Failure", "message": problem, "reason": "InternalError", "code": 500}
        return msgspec.json.encode({"metadata": {}, **status})
    if code == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    return msgspec.json.encode({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": _terminated(code),
        "details": {"causes": [{"reason": "ExitCode", "message": str(_exit_status(code))}]},
    })  # fmt: skip


def render_problem(code: int | None, problem: str = "") -> bytes:
    """The text on channel 3 for clients that do not read a Status; empty after success."""
    if problem or code is None:
        return problem.encode()
    return _terminated(code).encode() if code else b""


def _exit_status(code: int) -> int:
    """The exit status as a shell shows it: 128 plus the signal's number for a program that a signal ended."""
    return code if code > 0 else 128 - code


def _terminated(code: int) -> str:
    return f"command terminated with non-zero exit code: exit status {_exit_status(code)}"


class _Streams:
    """The descriptors of one session: the kubelet's ends, and the program's ends (``program_ends``)."""

    def __init__(self, options: StreamOptions) -> None:
        self.terminal = -1
        if options.tty:
            self.terminal, slave = pty.openpty()
            self.program_ends: tuple[int, ...] = (slave, os.dup(slave), os.dup(slave))
            self.input = self.terminal
            self.outputs: tuple[tuple[int, int], ...] = ((self.terminal, _STDOUT),)
        else:
            source, self.input = os.pipe() if options.stdin else (os.open("/dev/null", os.O_RDONLY), -1)
            out, out_end = _output(requested=options.stdout)
            err, err_end = _output(requested=options.stderr)
            self.program_ends = (source, out_end, err_end)
            self.outputs = tuple((fd, channel) for fd, channel in ((out, _STDOUT), (err, _STDERR)) if fd >= 0)
        for fd in {self.input, *(fd for fd, _ in self.outputs)} - {-1}:
            os.set_blocking(fd, False)

    def close_program_ends(self) -> None:
        """Closes the program's ends in this process, after they were sent to the program's shim."""
        for fd in self.program_ends:
            os.close(fd)
        self.program_ends = ()

    def close_input(self) -> None:
        """Ends the program's input; on a terminal by Ctrl-D."""
        if self.input < 0:
            return
        if self.input == self.terminal:
            os.write(self.terminal, b"\x04")
        else:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Closes everything."""
        self.close_program_ends()
        for fd in {self.input, self.terminal, *(fd for fd, _ in self.outputs)} - {-1}:
            os.close(fd)
        self.input, self.terminal, self.outputs = -1, -1, ()


def _output(*, requested: bool) -> tuple[int, int]:
    """The reading and the writing end of a program's output; -1 and ``/dev/null`` when the client does not want it."""
    return os.pipe() if requested else (-1, os.open("/dev/null", os.O_WRONLY))


class RemoteSession:
    """The session of one client with one container."""

    def __init__(self, state: PodState, container: str, options: StreamOptions, tasks: TaskSet) -> None:
        self._state = state
        self._container = container
        self._options = options
        self._tasks = tasks

    async def execute(self, connection: Channels) -> None:
        """Runs a command for the client until the command ends or the client disconnects."""
        context = self._state.command_context(self._container)
        order = ExecOrder(
            container=self._container,
            argv=self._options.command,
            user=context.user,
            privileges=context.privileges,
            tty=self._options.tty,
        )
        streams = _Streams(self._options)
        client = self._state.sandbox.client
        try:
            if client is None:
                raise ClusterError("the pod is not running")
            answer = await client.exec(order, streams.program_ends)
            streams.close_program_ends()
            if answer.problem:
                self._finish(connection, None, f"OCI runtime exec failed: exec failed: {answer.problem}")
                return
            await self._serve(connection, streams, lambda: self._state.exit_codes.wait(answer.pid), self._kill(answer))
        except ClusterError as failure:
            self._finish(connection, None, str(failure))
        finally:
            streams.close()
            connection.close()

    def _kill(self, answer: ShimAnswer) -> Callable[[], Awaitable[None]]:
        async def kill() -> None:
            if self._state.sandbox.client is not None:
                await self._state.sandbox.client.signal("", signal.SIGKILL, pid=answer.pid)

        return kill

    async def attach(self, connection: Channels) -> None:
        """Joins the client to a container's own streams."""
        options = msgspec.structs.replace(self._options, tty=False)
        streams = _Streams(options)
        client = self._state.sandbox.client
        container = self._state.containers[self._container]
        source, out, err = streams.program_ends
        try:
            if client is None or container.record is None:
                raise ClusterError("the container is not running")
            answer = await client.attach(self._container, (out, err, source) if options.stdin else (out, err))
            streams.close_program_ends()
            if answer.problem:
                raise ClusterError(answer.problem)
            if container.spec.tty:
                streams.terminal = os.open(f"/proc/{container.record.pid}/fd/0", os.O_RDWR | os.O_NOCTTY)

            async def ended() -> int:
                await self._state.exits[self._container].wait()
                return container.code or 0

            await self._serve(connection, streams, ended, None)
        except (ClusterError, OSError) as failure:
            self._finish(connection, None, str(failure))
        finally:
            streams.close()
            connection.close()

    async def _serve(
        self, connection: Channels, streams: _Streams, ended: Callable[[], Awaitable[int]],
        abandon: Callable[[], Awaitable[None]] | None,
    ) -> None:  # fmt: skip
        output = RemoteOutput(connection, streams.outputs, self._tasks)
        feed = self._tasks.start("input", _feed(connection, streams))
        end = self._tasks.start("end", _as_coroutine(ended))
        running = [*output.tasks, feed, end]
        try:
            await asyncio.wait((end, feed), return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                if abandon is not None:
                    await abandon()
                return
            finish = self._tasks.start("finish", output.finish())
            running.append(finish)
            await asyncio.wait((finish, feed), return_when=asyncio.FIRST_COMPLETED)
            self._finish(connection, end.result())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _finish(self, connection: Channels, code: int | None, problem: str = "") -> None:
        if connection.ends_with_status:
            connection.send(_STATUS, render_status(code, problem))
        elif text := render_problem(code, problem):
            connection.send(_STATUS, text)


async def _as_coroutine(ended: Callable[[], Awaitable[int]]) -> int:
    return await ended()


async def _feed(connection: Channels, streams: _Streams) -> None:
    """Forwards input and terminal sizes of the client; returns when the client has disconnected."""
    while (message := await connection.receive()) is not None:
        channel, payload = message
        if channel == _STDIN and streams.input >= 0:
            if payload and not await write_fd(streams.input, payload):
                streams.close_input()
        elif channel == _RESIZE:
            _resize(streams.terminal, payload)
        elif channel == _CLOSE and payload[:1] == bytes((_STDIN,)):
            streams.close_input()


def _resize(terminal: int, payload: bytes) -> None:
    try:
        size = msgspec.json.decode(payload, type=_Size)
        if terminal >= 0:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.Height, size.Width, 0, 0))
    except (msgspec.DecodeError, OSError, struct.error):
        return

"""The control socket of a cluster's supervisor: requests and progress as lines of JSON.

The client sends one :class:`ControlRequest`. The server answers with any number of :class:`ControlReply` lines that
carry progress, and a last one that carries the outcome: ``done`` or ``problem``. The socket's folder belongs to root,
so its permissions are the access control. Cost: nothing while idle.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ClusterError, ConfigError, PodwireError

CONTROL_SOCKET = "control.sock"
"""The file of the socket in the run folder of the cluster."""
_LINE_LIMIT = 1 << 20


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request: what to do, and its argument."""

    do: str
    argument: dict[str, Any] = {}


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of an answer."""

    progress: str = ""
    problem: str = ""
    wrong_input: bool = False
    """Whether the problem is the user's input (exit status 2)."""
    done: dict[str, Any] | None = None


Progress = Callable[[str], None]
Handler = Callable[[ControlRequest, Progress], Awaitable[dict[str, Any]]]


class ControlServer:
    """Answers on the socket with ``handler``; one request a connection."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler

    async def serve(self) -> None:
        """Serves until cancelled.

        Raises: OSError when the socket cannot be made.
        """
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, self._path, limit=_LINE_LIMIT)
        self._path.chmod(0o600)
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def reply(message: ControlReply) -> None:
            writer.write(msgspec.json.encode(message) + b"\n")

        try:
            send_request = msgspec.json.decode(await reader.readline(), type=ControlRequest)
            done = await self._handler(send_request, lambda text: reply(ControlReply(progress=text)))
            reply(ControlReply(done=done))
        except msgspec.DecodeError as failure:
            reply(ControlReply(problem=f"not a request: {failure}"))
        except PodwireError as failure:
            reply(ControlReply(problem=str(failure), wrong_input=isinstance(failure, ConfigError)))
        except ConnectionError:
            pass
        finally:
            writer.close()


def send_request(path: Path, request: ControlRequest, progress: Progress, timeout_s: float = 120.0) -> dict[str, Any]:
    """Sends a request and returns the outcome; ``progress`` gets what the supervisor reports meanwhile.

    Raises: ClusterError when no supervisor answers or the request failed; ConfigError for wrong input.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(path))
            sock.sendall(msgspec.json.encode(request) + b"\n")
            for line in _lines(sock):
                reply = msgspec.json.decode(line, type=ControlReply)
                if reply.problem:
                    raise (
                        ConfigError("podwire", "", reply.problem) if reply.wrong_input else ClusterError(reply.problem)
                    )
                if reply.done is not None:
                    return reply.done
                progress(reply.progress)
        except (OSError, msgspec.DecodeError) as failure:
            raise ClusterError(f"the supervisor does not answer on {path}: {failure}") from failure
    raise ClusterError(f"the supervisor ended before it had answered; its log is {path.parent / 'log/supervisor.log'}")


def _lines(sock: socket.socket) -> Iterator[bytes]:
    with sock.makefile("rb") as file:
        yield from file


def answers(path: Path) -> bool:
    """Whether a supervisor listens on the socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True

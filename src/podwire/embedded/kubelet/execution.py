"""Runs commands of probes and hooks inside a running container, and keeps the exit codes of all exec'd programs."""

import asyncio
import os
import signal
from collections.abc import Sequence

import msgspec

from podwire.embedded.kubelet.orders import ExecOrder, Privileges, ProcessUser, ShimAnswer
from podwire.embedded.kubelet.sandbox import Sandbox
from podwire.embedded.kubelet.shimclient import ShimClient
from podwire.embedded.kubelet.traffic import RequestOutcome
from podwire.errors import ClusterError

_OUTPUT = 10 << 10
_FORGET = 256


class ExitCodes:
    """Exit codes of programs that exec started, by pid.

    The last 256 codes are kept, because a program may end before :meth:`wait` is called.
    """

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Future[int]] = {}

    def record(self, event: ShimAnswer) -> None:
        """Records an event of the shim: a program has ended."""
        waiting = self._waiting.pop(event.pid, None)
        if waiting is None:
            self._codes[event.pid] = event.code
            if len(self._codes) > _FORGET:
                del self._codes[next(iter(self._codes))]
        elif not waiting.done():
            waiting.set_result(event.code)

    async def wait(self, pid: int) -> int:
        """The exit code of ``pid`` when it has ended; the negated number of the signal that ended it."""
        if pid in self._codes:
            return self._codes.pop(pid)
        waiting = self._waiting.setdefault(pid, asyncio.get_running_loop().create_future())
        return await waiting

    def lose(self) -> None:
        """Handles the end of the shim: all programs were killed."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(-signal.SIGKILL)
        self._waiting.clear()


class CommandContext(msgspec.Struct, frozen=True):
    """How a command runs in a container: user and privileges."""

    container: str
    user: ProcessUser | None = None
    privileges: Privileges = Privileges()
    answered: bool = False
    """Whether commands of probes and hooks succeed without being run, because the container is a stand-in."""


async def run_command(
    client: ShimClient, exit_codes: ExitCodes, context: CommandContext, command: Sequence[str], timeout_s: float
) -> RequestOutcome:
    """Runs a command to its end or for ``timeout_s``; the message is the output, at most 10 KiB."""
    output = os.memfd_create("output")
    nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    order = ExecOrder(
        container=context.container, argv=tuple(command), user=context.user, privileges=context.privileges,
    )  # fmt: skip
    try:
        answer = await client.exec(order, (nothing, output, output))
        if answer.problem:
            return RequestOutcome(False, answer.problem)
        try:
            async with asyncio.timeout(timeout_s):
                code = await exit_codes.wait(answer.pid)
        except TimeoutError:
            await client.signal("", signal.SIGKILL, pid=answer.pid)
            return RequestOutcome(False, f'command "{" ".join(command)}" timed out after {timeout_s:g}s')
        text = os.pread(output, _OUTPUT, 0).decode(errors="replace")
        return RequestOutcome(code == 0, text)
    except ClusterError as failure:
        return RequestOutcome(False, str(failure))
    finally:
        os.close(output)
        os.close(nothing)


class PodTarget:
    """The target of a pod's probes and hooks: the pod's address and its containers."""

    def __init__(self, sandbox: Sandbox, exit_codes: ExitCodes) -> None:
        self._sandbox = sandbox
        self._exit_codes = exit_codes

    @property
    def address(self) -> str:
        """The pod's first address."""
        return next(iter(self._sandbox.record.ips), "127.0.0.1")

    async def execute(self, context: CommandContext, command: tuple[str, ...], timeout_s: float) -> RequestOutcome:
        """Runs a command in a container; the command of a stand-in succeeds at once."""
        if context.answered:
            return RequestOutcome(True)
        client = self._sandbox.client
        if client is None:
            return RequestOutcome(False, "the container is not running")
        return await run_command(client, self._exit_codes, context, command, timeout_s)

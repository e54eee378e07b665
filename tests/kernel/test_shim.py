"""A shim with one real container: many programs end at the same time, podwire is one, and the shim itself ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from podwire.embedded.kubelet.execution import CommandContext, ExitCodes, run_command
from podwire.embedded.kubelet.orders import ContainerOrder, ContainerRecord, Privileges, ShimAnswer, ShimOrder
from podwire.embedded.kubelet.shimclient import ShimClient, listen

RUN = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
from podwire.embedded.kubelet.shim import run_shim
run_shim(bytes.fromhex(sys.argv[2]), {})
"""


@pytest.fixture
def shim(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A shim that listens at ``shim.sock``."""
    (tmp_path / "root").mkdir()
    order = ShimOrder(hostname="shimmed", root=str(tmp_path / "root"), host_network=True)
    with listen(tmp_path / "shim.sock") as listener:
        arguments = [sys.executable, "-c", RUN, str(listener.fileno()), msgspec.msgpack.encode(order).hex()]
        process = subprocess.Popen(
            ["unshare", "--net", *arguments], pass_fds=(listener.fileno(),), env={"PATH": os.environ["PATH"]}
        )
    yield process
    process.kill()
    process.wait()


def with_container(
    folder: Path,
    body: Callable[[ShimClient, ExitCodes], Awaitable[None]],
    argv: tuple[str, ...] = ("sleep", "600"),
    capabilities: tuple[int, ...] | None = None,
    **more: str,
) -> None:
    """Runs ``body`` while a container ``c`` runs a program; ``more`` is its environment besides PATH."""

    async def main() -> None:
        ends = ExitCodes()

        def event(answer: ShimAnswer) -> None:
            if not answer.container:
                ends.record(answer)

        client = ShimClient.connect(folder / "shim.sock", event, ends.lose)
        started = await client.start(
            ContainerOrder(
                name="c", attempt=0, id="c0", record=str(folder / "c.json"), log=str(folder / "c.log"),
                argv=argv, env={"PATH": os.environ["PATH"], **more}, privileges=Privileges(capabilities),
            )
        )  # fmt: skip
        assert not started.problem
        await body(client, ends)
        await client.end()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_programs_may_end_before_their_start_is_read(shim: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """A program that has ended before its start is read does not end the shim."""

    async def body(client: ShimClient, ends: ExitCodes) -> None:
        setting = CommandContext("c")

        async def series(number: int) -> list[str]:
            output = []
            for turn in range(50):
                arguments = ("true",) if turn % 10 else ("echo", f"{number}.{turn}")
                outcome = await run_command(client, ends, setting, arguments, 20.0)
                assert outcome.success, outcome.message
                output.append(outcome.message)
            return output

        result = await asyncio.gather(*(series(number) for number in range(6)))
        assert [[text for text in output if text] for output in result] == [
            [f"{number}.{turn}\n" for turn in range(0, 50, 10)] for number in range(6)
        ]
        assert client.open
        failed = await run_command(client, ends, setting, ("false",), 20.0)
        assert not failed.success
        late = await run_command(client, ends, setting, ("sleep", "30"), 0.2)
        assert "timed out after 0.2s" in late.message

    with_container(tmp_path, body)
    assert shim.wait(10) == 0
    assert '"pid"' in (tmp_path / "c.json").read_text()


INTERPRETER = sys.executable
SERVER = (str(Path(sys.executable).with_name("podwire")), "upgrade", "node", "serve")
OPEN = 6
"""Files of the server: standard input, output and errors, two sockets, and the one that waits for them."""
NET_RAW, NET_BIND_SERVICE = 13, 10  # linux/capability.h


def record_of(folder: Path) -> ContainerRecord:
    return msgspec.json.decode((folder / "c.json").read_bytes(), type=ContainerRecord)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def facts(pid: int) -> tuple[list[str], set[int], int]:
    """The command line, the sets of capabilities and the number of open files of a server, as soon as it serves."""
    place = Path("/proc", str(pid))
    wait_for(lambda: any(" 0A " in (place / "net" / name).read_text() for name in ("tcp", "tcp6")))
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    command = (place / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    capabilities = {int(status[kind], 16) for kind in ("CapPrm", "CapEff", "CapBnd")}
    return command, capabilities, len(list((place / "fd").iterdir()))


@pytest.mark.parametrize(
    ("environment", "title"),
    [({}, ["podwire upgrade node serve"]), ({"PYTHONUNBUFFERED": "1"}, [INTERPRETER, *SERVER])],
    ids=["fork", "new interpreter"],
)
def test_podwire_in_a_container_has_its_rights(
    shim: "subprocess.Popen[bytes]", tmp_path: Path, environment: dict[str, str], title: list[str]
) -> None:
    """A fork has the capabilities and the open files that a new interpreter has, and ends as that does."""

    async def body(client: ShimClient, ends: ExitCodes) -> None:
        pid = record_of(tmp_path).pid
        assert await asyncio.to_thread(facts, pid) == (title, {1 << NET_RAW | 1 << NET_BIND_SERVICE}, OPEN)
        shown = await run_command(client, ends, CommandContext("c"), (SERVER[0], "version"), 20.0)
        assert shown.success
        assert "python" in shown.message
        assert not (await run_command(client, ends, CommandContext("c"), (SERVER[0], "--wrong"), 20.0)).success
        await client.signal("c", signal.SIGTERM)
        await asyncio.to_thread(wait_for, lambda: record_of(tmp_path).finished)

    with_container(tmp_path, body, SERVER, (NET_RAW, NET_BIND_SERVICE), **environment)
    assert (record_of(tmp_path).signal, record_of(tmp_path).message) == (signal.SIGTERM, "")

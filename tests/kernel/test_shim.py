"""A shim with one real container: many programs end at the same time, and the shim itself ends."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from podwire.embedded.kubelet.execution import CommandContext, ExitCodes, run_command
from podwire.embedded.kubelet.orders import ContainerOrder, ShimAnswer, ShimOrder
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
            arguments, pass_fds=(listener.fileno(),), env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
    yield process
    process.kill()
    process.wait()


def with_container(folder: Path, body: Callable[[ShimClient, ExitCodes], Awaitable[None]]) -> None:
    """Runs ``body`` while a container ``c`` sleeps."""

    async def main() -> None:
        ends = ExitCodes()

        def event(answer: ShimAnswer) -> None:
            if not answer.container:
                ends.record(answer)

        client = ShimClient.connect(folder / "shim.sock", event, ends.lose)
        started = await client.start(
            ContainerOrder(
                name="c", attempt=0, id="c0", record=str(folder / "c.json"), log=str(folder / "c.log"),
                argv=("sleep", "600"), env={"PATH": os.environ["PATH"]},
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

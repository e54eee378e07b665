"""The streams of a container on the side of its shim, with real pipes."""

import os
from pathlib import Path

import pytest

from podwire.embedded.kubelet import containerlog
from podwire.embedded.kubelet.containerlog import LogWriter
from podwire.embedded.kubelet.containerstreams import ContainerStreams, StdioPipes, open_stdio
from podwire.embedded.kubelet.orders import ContainerOrder
from podwire.embedded.kubelet.selectloop import SelectLoop
from podwire.runtime.clock import SystemClock


class Run:
    """The streams of one run; ``container`` are the descriptors that its process would have."""

    def __init__(self, folder: Path, *, tty: bool = False) -> None:
        self.log = folder / "c.log"
        order = ContainerOrder(
            name="c", attempt=0, id="i", record="", log=str(self.log), stdin=True, stdin_once=True, tty=tty
        )
        self.loop = SelectLoop()
        self.pipes: StdioPipes = open_stdio(order)
        self.container = self.pipes.container
        self.streams = ContainerStreams(order, self.pipes, LogWriter(order.log), self.loop, SystemClock())

    def run_round(self) -> None:
        """Runs the actions of everything that is readable now."""
        reader, writer = os.pipe()
        self.loop.watch(reader, self.loop.stop)
        os.write(writer, b".")
        self.loop.run()
        self.loop.unwatch(reader)
        os.close(reader)
        os.close(writer)

    def close(self) -> None:
        """Ends the container."""
        for fd in set(self.container):
            os.close(fd)
        self.streams.close()

    def logged(self) -> list[tuple[str, bytes]]:
        """The stream and the text of each line of the log, sorted."""
        lines = [containerlog.parse(line) for line in self.log.read_bytes().splitlines(keepends=True)]
        return sorted((line.stream, line.text) for line in lines if line is not None)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_output_reaches_the_log_and_attached_clients(run: Run) -> None:
    output, errors = os.pipe(), os.pipe()
    run.streams.attach([output[1], errors[1]])
    os.write(run.container[1], b"to output\n")
    os.write(run.container[2], b"to errors\n")
    run.run_round()
    assert os.read(output[0], 100) == b"to output\n"
    assert os.read(errors[0], 100) == b"to errors\n"
    os.write(run.container[1], b"last words")
    run.close()
    assert run.logged() == [
        ("stderr", b"to errors\n"),
        ("stdout", b"last words"),
        ("stdout", b"to output\n"),
    ]
    for fd in (*output, *errors):
        os.close(fd)


def test_last_output_on_a_terminal_is_kept(tmp_path: Path) -> None:
    """The kernel hands what is written to a terminal to its other side a little later, in a work item of its own."""
    missing = []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = Run(folder, tty=True)
        os.write(run.container[1], b"last words")
        run.close()
        if run.logged() != [("stdout", b"last words")]:
            missing.append(number)
    assert missing == []


def test_a_process_left_on_a_terminal_delays_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, tty=True)
    remaining = os.dup(run.container[1])
    os.write(remaining, b"still here")
    run.close()
    assert run.logged() == [("stdout", b"still here")]
    os.close(remaining)


def test_input_after_the_end_reaches_no_other_file(run: Run) -> None:
    """The number of the closed input may belong to another file when an attached client sends more."""
    source_in, source_out = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY)
    run.streams.attach([null, null, source_in])
    number = run.pipes.input
    run.close()
    reader, writer = os.pipe()
    os.dup2(writer, number)
    os.write(source_out, b"late input")
    run.run_round()
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    for fd in {reader, writer, number, source_in, source_out, null}:
        os.close(fd)

"""Child processes as one desired set: started, kept running, adopted, replaced and ended; with real programs."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.runtime.childrecord import read_record
from podwire.runtime.children import ChildEvent, Children, spawn_program
from podwire.runtime.clock import SystemClock
from podwire.runtime.process import is_running, start_ticks
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor

_PROGRAM = """
import signal, sys
log, config = sys.argv[1:]
def note(word):
    with open(log, "a") as file:
        file.write(word + "\\n")
signal.signal(signal.SIGHUP, lambda *_: note("reload " + open(config).read()))
note("start " + open(config).read())
while True:
    signal.pause()
"""


class Parent:
    """A component with children; what happened to them is in ``events``."""

    def __init__(self, folder: Path, tasks: Supervisor, term_wait_s: float) -> None:
        self.folder = folder
        self.events: list[ChildEvent] = []
        self.children = Children(
            folder / "children", spawn_program, tasks, SystemClock(), self.events.append, term_wait_s=term_wait_s
        )

    def child(self, name: str = "bird", config: str = "one", **changes: object) -> Child:
        path = f"{self.folder}/{name}.conf"
        return Child(
            name=name,
            argv=(sys.executable, "-c", _PROGRAM, f"{self.folder}/{name}.log", path),
            files={path: config.encode()},
            **changes,  # type: ignore[arg-type]
        )

    def log(self, name: str = "bird") -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def pid(self, name: str = "bird") -> int:
        record = read_record(self.folder / f"children/{name}.json")
        return record.pid if record is not None and record.running else 0


class _Leaving(Exception):
    pass


@asynccontextmanager
async def parent(folder: Path, term_wait_s: float = 3.0) -> AsyncIterator[Parent]:
    """A parent until the end of the block; its children outlive it."""
    try:
        async with Supervisor(SystemClock(), lambda _name, _failure: None) as tasks:
            yield Parent(folder, tasks, term_wait_s)
            raise _Leaving
    except* _Leaving:
        pass


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for file in (tmp_path / "children").glob("*.json"):
        record = read_record(file)
        if record is not None and record.running:
            os.kill(record.pid, signal.SIGKILL)


def run(folder: Path, *steps: Callable[[Parent], Awaitable[None]], term_wait_s: float = 3.0) -> None:
    """Runs each step with a parent of its own."""

    async def run_step(step: Callable[[Parent], Awaitable[None]]) -> None:
        async with parent(folder, term_wait_s) as created:
            await step(created)

    for step in steps:
        asyncio.run(run_step(step))


def test_desired_children_run_with_their_files(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([created.child("a", "x"), created.child("b", "y")])
        await eventually(lambda: created.log("a") and created.log("b"))
        assert (created.log("a"), created.log("b")) == (["start x"], ["start y"])
        assert created.children.pids() == {"a": created.pid("a"), "b": created.pid("b")}
        assert os.getsid(created.pid("a")) == created.pid("a")

    run(folder, body)


def test_a_child_has_the_priority_that_it_asks_for(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([created.child(niceness=5)])
        assert os.getpriority(os.PRIO_PROCESS, created.pid()) == 5

    run(folder, body)


def test_the_same_set_again_changes_nothing(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([created.child()])
        await eventually(created.log)
        pid = created.pid()
        await created.children.apply([created.child()])
        assert (created.pid(), created.log(), created.events) == (pid, ["start one"], [])

    run(folder, body)


def test_a_child_that_ends_is_started_again(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([created.child()])
        await eventually(created.log)
        first = created.pid()
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: len(created.log()) == 2)
        assert created.pid() not in (0, first)
        assert created.events == [ChildEvent("bird", first, "ended")]

    run(folder, body)


def test_a_new_parent_adopts_the_children_of_the_old_one(folder: Path) -> None:
    pids = []

    async def first(created: Parent) -> None:
        await created.children.apply([created.child()])
        await eventually(created.log)
        pids.append(created.pid())

    async def second(created: Parent) -> None:
        await created.children.apply([created.child()])
        await eventually(lambda: created.events)
        assert created.events == [ChildEvent("bird", pids[0], "adopted")]
        assert (created.pid(), created.log()) == (pids[0], ["start one"])

    run(folder, first, second)


def test_an_adopted_child_with_another_command_is_replaced(folder: Path) -> None:
    pids = []

    async def first(created: Parent) -> None:
        await created.children.apply([created.child()])
        await eventually(created.log)
        pids.append(created.pid())

    async def second(created: Parent) -> None:
        await created.children.apply([created.child(environment={"LEVEL": "debug"})])
        await eventually(lambda: len(created.log()) == 2)
        assert start_ticks(pids[0]) == 0

    run(folder, first, second)


def test_unwanted_children_of_an_earlier_parent_are_ended(folder: Path) -> None:
    pids = []

    async def first(created: Parent) -> None:
        await created.children.apply([created.child("a"), created.child("b")])
        await eventually(lambda: created.log("a") and created.log("b"))
        pids.append(created.pid("a"))

    async def second(created: Parent) -> None:
        await created.children.apply([created.child("b")])
        assert start_ticks(pids[0]) == 0
        assert created.children.is_running("b")
        assert sorted(p.name for p in folder.iterdir()) == ["a.log", "b.conf", "b.log", "children"]
        assert [p.name for p in (folder / "children").iterdir()] == ["b.json"]

    run(folder, first, second)


@pytest.mark.parametrize(
    ("on_change", "log"),
    [
        ("restart", ["start one", "start two"]),
        ("reload", ["start one", "reload two"]),
        ("ignore", ["start one"]),
    ],
)
def test_changed_files_reach_the_child_as_it_asks(folder: Path, on_change: str, log: list[str]) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([created.child(on_file_change=on_change)])
        await eventually(created.log)
        await created.children.apply([created.child(config="two", on_file_change=on_change)])
        await eventually(lambda: created.log() == log)
        assert (folder / "bird.conf").read_text() == "two"

    run(folder, body)


def test_a_child_that_ignores_sigterm_is_killed(folder: Path) -> None:
    async def body(created: Parent) -> None:
        program = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
        log = folder / "stubborn.log"
        await created.children.apply([Child(name="stubborn", argv=(sys.executable, "-c", program), log=str(log))])
        await eventually(lambda: log.exists() and log.read_text())
        pid = created.pid("stubborn")
        await created.children.apply([])
        assert start_ticks(pid) == 0

    run(folder, body, term_wait_s=0.2)


def test_a_missing_program_does_not_delay_other_children(folder: Path) -> None:
    async def body(created: Parent) -> None:
        missing = Child(name="missing", argv=(f"{folder}/no-such-program",))
        await created.children.apply([missing, created.child()])
        await eventually(created.log)
        assert created.children.pids()["missing"] == 0

    run(folder, body)


def test_a_stopped_child_is_not_started_again(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.ensure(created.child())
        await eventually(created.log)
        await created.children.stop(["bird", "unknown"])
        await asyncio.sleep(0.2)
        assert (created.log(), created.events, created.children.pids()) == (["start one"], [], {})

    run(folder, body)


def test_a_number_used_again_is_not_the_same_process() -> None:
    ticks = start_ticks(os.getpid())
    assert is_running(os.getpid(), ticks)
    assert not is_running(os.getpid(), ticks + 1)
    assert not is_running(0, 0)


_CHECK = "import sys; sys.exit('no good: ' + sys.argv[1]) if 'bad' in open(sys.argv[1]).read() else None"
_TELL = "import sys; open(sys.argv[1], 'a').write('told\\n')"


def checked(created: Parent, config: str, reload: tuple[str, ...] = ()) -> Child:
    """A child whose files are checked, and that is told by a command to read them."""
    check = (sys.executable, "-c", _CHECK, f"{created.folder}/bird.conf")
    tell = reload or (sys.executable, "-c", _TELL, f"{created.folder}/bird.log")
    return created.child(config=config, on_file_change="reload", check=check, reload=tell)


def test_refused_files_leave_the_child_with_the_last_good_ones(folder: Path) -> None:
    async def body(created: Parent) -> None:
        await created.children.apply([checked(created, "good")])
        await eventually(created.log)
        pid = created.pid()
        with pytest.raises(ConfigError, match=r"^the files of bird: refused: no good: .*bird\.conf\.new$"):
            await created.children.apply([checked(created, "bad")])
        assert (created.pid(), created.log()) == (pid, ["start good"])
        assert (folder / "bird.conf").read_text() == "good"
        assert not (folder / "bird.conf.new").exists()
        await created.children.apply([checked(created, "better")])
        assert (created.pid(), created.log()) == (pid, ["start good", "told"])
        assert (folder / "bird.conf").read_text() == "better"

    run(folder, body)


def test_a_child_with_refused_files_is_not_started(folder: Path) -> None:
    async def body(created: Parent) -> None:
        with pytest.raises(ConfigError, match="refused"):
            await created.children.apply([checked(created, "bad")])
        assert created.pid() == 0 and not (folder / "bird.conf").exists()

    run(folder, body)


def test_a_failed_reload_is_tried_again_by_the_next_call(folder: Path) -> None:
    async def body(created: Parent) -> None:
        deaf = (sys.executable, "-c", "import os, sys; sys.exit(0 if os.path.exists(sys.argv[1]) else 'deaf')")
        reload = (*deaf, f"{created.folder}/hears")
        await created.children.apply([checked(created, "one", reload=reload)])
        for _ in range(2):
            with pytest.raises(ConfigError, match="not read by the running program: deaf"):
                await created.children.apply([checked(created, "two", reload=reload)])
        (folder / "hears").touch()
        await created.children.apply([checked(created, "two", reload=reload)])

    run(folder, body)


def test_adopted_child_is_signalled_to_read_its_files(folder: Path) -> None:
    async def first(created: Parent) -> None:
        await created.children.apply([checked(created, "one")])
        await eventually(created.log)

    async def second(created: Parent) -> None:
        await created.children.apply([checked(created, "one")])
        assert created.log() == ["start one", "told"]
        await created.children.apply([checked(created, "one")])
        assert created.log() == ["start one", "told"]

    run(folder, first, second)


def test_a_restart_by_kill_lets_no_child_undo_anything(folder: Path) -> None:
    async def body(created: Parent) -> None:
        undo = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], 'w').close()); "
        wait = "open(sys.argv[2], 'w').close(); [signal.pause() for _ in iter(int, 1)]"
        undone = folder / "undone"
        for version in ("1", "2"):
            child = created.child(restart_by="kill")
            argv = (sys.executable, "-c", undo + wait, str(undone), f"{folder}/up{version}")
            await created.children.apply([replace(child, argv=argv)])
            await eventually((folder / f"up{version}").exists)
        assert not undone.exists()
        await created.children.apply([])
        assert undone.exists()

    run(folder, body, term_wait_s=0.5)

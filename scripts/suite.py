"""Runs test tiers and says at the end what failed and how to run that again.

Usage: ``python scripts/suite.py [TIER ...]``, all tiers without arguments. The exit status is 0 when every test passed,
1 when one failed, 2 for a tier that does not exist.

A tier is one or more jobs, each a process of pytest, or of mypy in the tier ``types``. The jobs of a tier run side by
side, the tiers one after the other (but for those of ``TOGETHER``): with all tiers at once on two processors, tests
waited for each other and the whole took longer. The output of a job is shown whole, in the order of the jobs; that of
the first unfinished job as it comes.

A few failed tests of a tier that depends on the machine run once more, alone, after all tiers. Those that pass then are
named as unstable and do not fail the suite; ``docs/adr/0017-second-run.md`` says why.

Nothing waits for ever: a test that does not end fails alone (``tests/forked_workers.py``), a job without output for ten
minutes is ended, and so is what still runs after 75 minutes. The end of the output names what it was.

Python may keep the compiled tests (``__pycache__``), whatever the environment says: each process of pytest, the guests
and every later run would compile them again, a third of the time that it takes them to begin.
"""

import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTEST = (".venv/bin/python", "-m", "pytest")
FORKS = ("-p", "tests.forked_workers", "--forks")
"""Workers that are forks of the process that has collected the tests; their number follows."""
SILENT_S = 600.0
"""Seconds without output after which a job is ended; a test of a worker has half of them."""
WHOLE_S = 75 * 60.0
"""Seconds after which the suite ends what still runs: less than CI waits, which shows nothing then."""
LAST_S = 5.0
"""Seconds in which a job that is ended can write where it was."""
GUEST = ("scripts/uml", "pytest")
UNIT_HALF = ("cli", "cni", "dns", "embedded", "house")
"""Folders of ``tests/unit`` with half of its time."""
WITH_TESTS_OF_GUESTS = ("test_routing_ipvlan.py", "test_routing_segment.py", "test_routing_trunk.py")
"""Files for the guest of ``tests/uml``, so that the three guests have about the same time to run."""
GUEST_OF_ROUTING = ("test_routing_nodes.py", "test_routing_ovs.py")
"""Files for the second guest; the third one has all others."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::[^\[ ]+(?:\[.*?\])?)?)(?: - .*)?$")
HEADING = re.compile(r"^_+ (?:ERROR (?:at \w+ of|collecting) )?(\S.*?) _+$")
"""As pytest prints the name of a failed test above its traceback and captured output."""
COLLECTED = re.compile(r"^(tests/\S+): \d+$", re.M)
"""As ``pytest -qq --collect-only`` prints a file and the number of its tests."""
COUNTED = re.compile(r"(\d+) (passed|failed|error|skipped)")
_NUMBERS = itertools.count()
"""Of the folders for temporary files of one run."""
REPEATED_TIERS = ("kernel", "uml", "e2e")
"""Tiers whose tests share processors, a kernel and time with others. A unit test that fails is a fault."""
REPEATED_TESTS = 6
"""More failed tests than these have a common cause; none of them runs again, unless all are in one file, whose fixtures
they share."""


@dataclass
class Job:
    """One process of pytest or mypy."""

    tier: str
    command: tuple[str, ...]
    again: tuple[str, ...] = PYTEST
    """The command that runs one of its tests again, without the test."""
    output: Path = Path()
    process: "subprocess.Popen[bytes] | None" = None
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    """The commands that run what failed again."""
    failed_tests: list[str] = field(default_factory=list)
    """The names of the failed tests, without what failed before a test was named."""
    unstable: list[str] = field(default_factory=list)
    """The commands of tests that failed among the others and passed alone."""
    failures: list[str] = field(default_factory=list)
    """Traceback and captured output of the first run of each unstable test."""


def unit_jobs() -> Iterator[Job]:
    """The unit tests without the thorough ones, in two processes, which both read the half of the files that they run.

    Four workers keep two processors busy while tests of servers wait.
    """
    quick = (*PYTEST, *FORKS, "2", "-m", "not thorough")
    half = [f"tests/unit/{folder}" for folder in UNIT_HALF]
    yield Job("unit", (*quick, *half))
    yield Job("unit", (*quick, "tests/unit", *(f"--ignore={folder}" for folder in half)))


def types_jobs() -> Iterator[Job]:
    """mypy, which needs one processor for as long as the unit tests need two when it has no cache."""
    yield Job("types", (".venv/bin/mypy",))


def thorough_jobs() -> Iterator[Job]:
    """The unit tests with very many random cases, or with a whole control plane (``tests/unit/conftest.py``).

    They take what the kernel tests leave of the processors.
    """
    yield Job("thorough", ("nice", *PYTEST, *FORKS, "2", "-m", "thorough", "tests/unit"))


def kernel_jobs() -> Iterator[Job]:
    """Each file has network namespaces of its own. Files begin in the order of ``tests/kernel/conftest.py``.

    The tests wait for a third of their time: six workers keep two processors busy.
    """
    again = (*PYTEST, "-p", "no:randomly")
    yield Job("kernel", (*again, *FORKS, "6", "tests/kernel"), again)


def uml_jobs() -> Iterator[Job]:
    """The tests with the marker ``uml``, in three guests: user-mode Linux has one processor.

    Three keep two processors busy until the second one ends, whatever each of them has to do.
    """
    listed = subprocess.run(
        (*PYTEST, "--collect-only", "-q", "-m", "uml", "tests/kernel"),
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    files = COLLECTED.findall(listed.stdout)
    if not files:
        print(listed.stdout, listed.stderr)
    again = (*GUEST, "-p", "no:randomly", "-m", "uml")
    first = [file for file in files if file.endswith(WITH_TESTS_OF_GUESTS)]
    routing = [file for file in files if file.endswith(GUEST_OF_ROUTING)]
    guest = (*again, *FORKS, "1")
    yield Job("uml", (*guest, "tests/uml", *first), again)
    yield Job("uml", (*guest, *routing), again)
    yield Job("uml", (*guest, *(file for file in files if file not in (*first, *routing))), again)


def e2e_jobs() -> Iterator[Job]:
    """Each file has clusters of its own, or shares that of its worker. The order is that of ``tests/e2e/conftest.py``.

    A single worker waits for half of its time. Four keep two processors busy; with six, tests with limits of time fail
    on a slow machine.
    """
    again = (*PYTEST, "-p", "no:randomly")
    yield Job("e2e", (*again, *FORKS, "4", "tests/e2e"), again)


TIERS = {
    "unit": unit_jobs,
    "types": types_jobs,
    "kernel": kernel_jobs,
    "thorough": thorough_jobs,
    "uml": uml_jobs,
    "e2e": e2e_jobs,
}
TOGETHER = (("unit", "types"), ("kernel", "thorough"), ("uml",), ("e2e",))
"""The tiers in their order; those of one tuple run side by side: mypy has one thread, and tests of packets wait."""


def run_jobs(jobs: Sequence[Job], folder: Path, deadline: float = math.inf) -> None:
    """Runs jobs side by side and shows their output.

    Each has a folder of its own for temporary files: at its end, a process of pytest fails when another one deletes old
    files in the same folder at that moment. The paths are short, because some tests put sockets below them.

    A shell starts background commands with SIGINT ignored, and children inherit that. Tests that send SIGINT to
    ``podwire`` need the default action.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, job in enumerate(jobs):
        job.output = folder / f"{job.tier}-{number}"
        temporary = folder / str(next(_NUMBERS))
        temporary.mkdir()
        with job.output.open("wb") as output:
            job.process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT | {"PYTEST_DEBUG_TEMPROOT": str(temporary)},
            )
    for job in jobs:
        print(f"== {job.tier}: {shlex.join(job.command)}", flush=True)
        show(job, deadline)
        read_result(job)


def show(job: Job, deadline: float) -> None:
    """Copies the output of a job to standard output until the job has ended; ends one that gets stuck."""
    assert job.process is not None
    with job.output.open("rb") as output:
        while True:
            ended = job.process.poll() is not None
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
            if ended:
                return
            if time.monotonic() > deadline:
                end(job.process, f"the suite has run for {WHOLE_S / 60:.0f} minutes")
            elif time.time() - job.output.stat().st_mtime > SILENT_S:
                end(job.process, f"this job has printed nothing for {SILENT_S:.0f} s")
            time.sleep(0.2)


def end(process: "subprocess.Popen[bytes]", reason: str) -> None:
    """Ends a process and those below it; Python writes before where its threads are."""
    print(f"\n== ended, since {reason}", flush=True)
    below = descendants(process.pid)
    process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LAST_S)
    for number in (process.pid, *below):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def descendants(number: int) -> list[int]:
    """The numbers of the processes below one, as they are now."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [number]
    for parent in found:
        found += parents.get(parent, [])
    return found[1:]


def read_result(job: Job) -> None:
    """Fills in counts and failures of a job that has ended."""
    assert job.process is not None
    lines = job.output.read_text(errors="replace").splitlines()
    for line in lines:
        if (match := FAILED.match(line)) and match[1] not in job.failed_tests:
            job.failed_tests.append(match[1])
            job.failed.append(shlex.join((*job.again, match[1])))
    summary = next((line for line in reversed(lines) if COUNTED.search(line) and " in " in line), "")
    for number, word in COUNTED.findall(summary):
        job.counts["failed" if word == "error" else word] += int(number)
    if job.process.returncode != 0 and not job.failed:
        job.failed.append(f"{shlex.join(job.command)}   # exit status {job.process.returncode}, no test named")
        job.counts["failed"] += 1


def failure_texts(output: str, test: str) -> list[str]:
    """What pytest printed about a failed test, with captured output; a test may fail in more than one phase."""
    file, _, name = test.partition("::")
    texts: list[list[str]] = []
    inside = False
    for line in output.splitlines():
        if match := HEADING.match(line):
            inside = match[1] == name.replace("::", ".")
            texts += [[]] if inside else []
        elif line.startswith("===="):
            inside = False
        if inside:
            texts[-1].append(line)
    whole = ["\n".join(lines).rstrip() for lines in texts]
    return [text for text in whole if f"{file}:" in text] or whole


def repeat_failed(jobs: Sequence[Job], folder: Path, deadline: float = math.inf) -> None:
    """Runs the failed tests of ``jobs`` once more, one job at a time.

    Only if they are few or all of one file, and all of tiers that depend on the machine.
    """
    failed = [job for job in jobs if job.failed]
    files = {test.partition("::")[0] for job in failed for test in job.failed_tests}
    few = sum(len(job.failed) for job in failed) <= REPEATED_TESTS or len(files) == 1
    named = all(len(job.failed) == len(job.failed_tests) for job in failed)
    if not few or not named or any(job.tier not in REPEATED_TIERS for job in failed):
        return
    for job in failed:
        first = job.output.read_text(errors="replace")
        second = Job(job.tier, (*job.again, *job.failed_tests), job.again)
        print(f"\n== {job.tier}: the failed tests once more, alone", flush=True)
        run_jobs([second], folder, deadline)
        if second.counts["passed"] + second.counts["failed"] < len(job.failed_tests):
            continue
        passed = [test for test in job.failed_tests if test not in second.failed_tests]
        job.unstable = [shlex.join((*job.again, test)) for test in passed]
        job.failures = [text for test in passed for text in failure_texts(first, test)]
        job.failed = second.failed
        job.counts["failed"] = second.counts["failed"]
        job.counts["passed"] += len(passed)


def report(jobs: Sequence[Job]) -> int:
    """Prints what failed or was unstable and the closing line; the exit status."""
    failed = list(dict.fromkeys(line for job in jobs for line in job.failed))
    unstable = list(dict.fromkeys(line for job in jobs for line in job.unstable))
    if unstable:
        print(f"\n== how the {len(unstable)} unstable failed:\n")
        print("\n\n".join(text for job in jobs for text in job.failures))
        print(f"\n== {len(unstable)} unstable, failed among the others and passed alone; mend the cause:")
        print("\n".join(unstable))
    if failed:
        print(f"\n== {len(failed)} failed; each line runs one of them again:")
        print("\n".join(failed))
    total: Counter[str] = sum((job.counts for job in jobs), Counter())
    named = f", {len(unstable)} of the passed unstable" if unstable else ""
    print(f"\nsuite: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped{named}")
    return 1 if failed or not total["passed"] else 0


def main(tiers: Sequence[str]) -> int:
    """Runs the named tiers, all of them where none is named."""
    if unknown := [tier for tier in tiers if tier not in TIERS]:
        print(f"suite: no tier {', '.join(unknown)}; the tiers are {', '.join(TIERS)}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    wanted = tiers or tuple(TIERS)
    done: list[Job] = []
    deadline = time.monotonic() + WHOLE_S
    with tempfile.TemporaryDirectory(prefix="pw-", ignore_cleanup_errors=True) as folder:
        for group in TOGETHER:
            if chosen := [tier for tier in group if tier in wanted]:
                began, jobs = time.monotonic(), [job for tier in chosen for job in TIERS[tier]()]
                run_jobs(jobs, Path(folder), deadline)
                print(f"== {', '.join(chosen)}: {time.monotonic() - began:.0f} s", flush=True)
                done += jobs
        repeat_failed(done, Path(folder), deadline)
    return report(done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

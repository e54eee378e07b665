"""iptables in a network namespace, by its own programs, because its two kinds share no netlink interface.

A machine can have two kinds of iptables: ``nft`` (rules in nf_tables) and ``legacy`` (ip_tables). Both may hold rules
at once, and a packet passes both. :func:`choose` takes the kind that is in use: legacy when tables of legacy hold rules
and nft has no tables; otherwise nft, when the kernel and the programs support it.

One call changes all tables of a family (2 ms and more; nft also reads the chains that a text names). The text is
written only after ``started`` was called with the process id: notifications of nf_tables carry this number.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from podwire.errors import KernelError, Unsupported
from podwire.kernel import netns
from podwire.kernel.failure import refusal
from podwire.kernel.nft import Nft
from podwire.kernel.xtables_lock import LOCK
from podwire.model.wording import count
from podwire.runtime.child import Finished, call

Kind = Literal["nft", "legacy"]

FAMILIES = ("ip", "ip6")

_PROGRAMS = {"ip": "iptables", "ip6": "ip6tables"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMES = {"ip": "ip_tables_names", "ip6": "ip6_tables_names"}
_TIMEOUT_S = 300.0
_LOCK_WAIT = "5"
_TABLES = frozenset(("nat", "filter", "mangle", "raw", "security"))
_CLOCK_MONOTONIC = 1  # linux/time.h
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_OUT_OF_MEMORY = 4  # Exit status of iptables-restore for a resource problem (iptables(8)).


class Programs(msgspec.Struct, frozen=True):
    """The paths of the programs of one kind."""

    kind: Kind
    save: dict[str, str]
    restore: dict[str, str]
    """Paths by family."""


def find(kind: Kind) -> Programs | None:
    """The programs of a kind; None when one of them is not installed."""
    for middle in (f"-{kind}", ""):
        paths = [shutil.which(f"{name}{middle}-{verb}", path=_PATH) for name in _PROGRAMS.values() for verb in _VERBS]
        if all(paths):
            save, restore, save6, restore6 = map(str, paths)
            if middle or _kind_of(restore) == kind:
                return Programs(kind, {"ip": save, "ip6": save6}, {"ip": restore, "ip6": restore6})
    return None


_VERBS = ("save", "restore")


def _kind_of(program: str) -> Kind:
    finished = call((program, "--version"), env=_environment(), timeout_s=_TIMEOUT_S)
    return "nft" if b"nf_tables" in finished.output else "legacy"


def _environment() -> dict[str, str]:
    return {"PATH": _PATH, "LC_ALL": "C"}


def legacy_tables(netns_path: Path | str | None = None) -> frozenset[str]:
    """Tables of legacy iptables that exist in a namespace, of either family."""
    with netns.inside(netns_path):
        return frozenset().union(*map(legacy_tables_of, _NAMES))


def legacy_tables_of(family: str) -> frozenset[str]:
    """Tables of legacy iptables of one family that exist in the namespace of the calling thread."""
    path = Path("/proc/thread-self/net", _NAMES[family])
    return frozenset(path.read_text(encoding="ascii").split()) if path.exists() else frozenset()


def nft_tables(netns_path: Path | str | None = None) -> frozenset[tuple[str, str]]:
    """(family, table) of the tables that iptables of the nft kind uses; none when the kernel lacks nf_tables."""
    try:
        with Nft(netns_path) as nft:
            return frozenset((f, name) for f, name in nft.tables() if f in _PROGRAMS and name in _TABLES)
    except KernelError:
        return frozenset()


def locked(programs: Programs) -> bool:
    """Whether another process holds the xtables lock (``/run/xtables.lock``); programs of the nft kind take no lock."""
    if programs.kind != "legacy":
        return False
    try:
        descriptor = os.open(LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # No process has taken the lock since boot.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def choose(netns_path: Path | str | None = None) -> Programs:
    """The programs to use in a namespace.

    Raises: Unsupported when there are none, or when the kernel has neither kind.
    """
    nft, legacy = find("nft"), find("legacy")
    if nft is None and legacy is None:
        raise Unsupported("iptables", detail="iptables-restore is not installed")
    if nft is not None and legacy is not None and legacy_tables(netns_path) and not nft_tables(netns_path):
        with Iptables("ip", legacy, netns_path) as used:
            if "\n-A " in used.save():
                return legacy
    reasons: list[str] = []
    for programs in (nft, legacy):
        if programs is None:
            continue
        problem = _try(programs)
        if not problem:
            return programs
        reasons.append(problem)
    raise Unsupported("iptables", detail="; ".join(reasons))


def _try(programs: Programs) -> str:
    """The reason why a kind does not work on this machine, by a trial in a new namespace; empty when it works."""
    descriptor = netns.create_anonymous()
    try:
        if programs.kind == "nft":
            try:
                Nft(descriptor).close()
            except KernelError as failure:
                return f"nft: {failure.detail or failure}"
        with netns.inside(descriptor):
            tried = call((programs.restore["ip"], "--noflush"), env=_environment(), stdin=_PROBE, timeout_s=_TIMEOUT_S)
    finally:
        os.close(descriptor)
    return "" if tried.code == 0 else f"{programs.kind}: {_error_messages(tried)}"


_PROBE = b"*nat\n-A OUTPUT -m comment --comment probe -m addrtype --dst-type LOCAL -j ACCEPT\nCOMMIT\n"


def _error_messages(finished: Finished) -> str:
    """The error messages of a program, as one line."""
    lines = finished.errors.decode(errors="replace").splitlines()
    messages = [line.strip() for line in lines if line.strip() and "for more information" not in line]
    return "; ".join(messages) or f"exit status {finished.code}"


class Iptables:
    """One family of iptables in one network namespace (None: that of the calling thread)."""

    def __init__(self, family: str, programs: Programs, netns_path: Path | str | None = None) -> None:
        self.family = family
        self._programs = programs
        self._netns = netns.open_netns(netns_path) if netns_path is not None else None

    def __enter__(self) -> "Iptables":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor of the namespace."""
        if self._netns is not None:
            os.close(self._netns)
            self._netns = None

    def save(self, table: str = "", *, counters: bool = False) -> str:
        """The output of iptables-save for all tables, or for one table; with ``counters`` also the packet counters.

        Raises: KernelError.
        """
        options = (*(("-t", table) if table else ()), *(("-c",) if counters else ()))
        finished = self._call((self._programs.save[self.family], *options), b"", None)
        if finished.code != 0:
            raise KernelError("read", f"iptables {self.family}", errno.EIO, _error_messages(finished))
        return finished.output.decode()

    def restore(self, text: str, started: Callable[[int], None] | None = None) -> None:
        """Runs iptables-restore with a text that changes only the chains in it; an empty text runs nothing.

        Raises: KernelError with the program's message; tables before the refused one are changed.
        """
        if not text:
            return
        program = self._programs.restore[self.family]
        finished = self._call((program, "--noflush", "-w", _LOCK_WAIT), text.encode(), started)
        if finished.code != 0:
            number = errno.ENOMEM if finished.code == _OUT_OF_MEMORY else errno.EINVAL
            number = errno.ETIMEDOUT if finished.code is None else number
            raise KernelError(
                "iptables-restore", f"{self.family} ({_subject(text, finished)})", number, _error_messages(finished)
            )

    def _call(self, argv: tuple[str, ...], stdin: bytes, started: Callable[[int], None] | None) -> Finished:
        with netns.inside(self._netns):
            try:
                return call(argv, env=_environment(), stdin=stdin, timeout_s=_TIMEOUT_S, started=started)
            except OSError as failure:
                raise refusal("run", argv[0], failure.errno or 0) from failure


def _subject(text: str, finished: Finished) -> str:
    """The refused line of the text, if the program prints its number; otherwise the number of lines."""
    tokens = finished.errors.decode(errors="replace").replace(":", " ").split()
    for before, word in pairwise(tokens):
        if before == "line" and word.isdecimal():
            lines = text.splitlines()
            return lines[int(word) - 1] if 0 < int(word) <= len(lines) else "?"
    return count(text.count(chr(10)), "line")


class Ticker:
    """A descriptor that becomes readable every ``period_s`` seconds, to poll state without kernel notifications."""

    def __init__(self, period_s: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise refusal("create", "timer", ctypes.get_errno())
        seconds, nanoseconds = int(period_s), int(period_s % 1 * 1e9)
        times = struct.pack("=qqqq", seconds, nanoseconds, seconds, nanoseconds)  # struct itimerspec
        if libc.timerfd_settime(self._fd, 0, times, None) != 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise refusal("set", "timer", number)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def period_ended(self) -> bool:
        """Whether a period has ended since the last call."""
        try:
            return bool(os.read(self._fd, 8))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)

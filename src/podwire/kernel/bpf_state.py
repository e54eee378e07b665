"""Reads and applies the BPF programs, maps and attachments of a folder of the BPF file system.

The folder is ``/sys/fs/bpf/podwire/<name>`` with the folders ``programs`` (pins ``<name>-<digest>``), ``maps`` and
``links``. :func:`apply` loads a program that is missing or has another digest, uses pinned maps of the right shape
again, replaces the program at its hooks, and only then removes what is surplus. A map that is new or had another
shape is empty: who fills it looks for :func:`apply` to return a change.

Cost: reading takes 20 us for an attachment; loading 20 ms.
"""

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from podwire.errors import KernelError, KernelNotFound, Unsupported
from podwire.kernel import bpf_objects, bpf_syscall, netns
from podwire.kernel.bpf_attach import BpfAttachments, index_of
from podwire.kernel.bpf_syscall import BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_INGRESS, BpfMapTable
from podwire.kernel.failure import refusal
from podwire.kernel.netns import NetnsPath
from podwire.kernel.uapi import MS_NODEV, MS_NOEXEC, MS_NOSUID
from podwire.state.bpf import BpfAttachment, BpfFolder, BpfMap, BpfProgram

_LIBC = ctypes.CDLL(None, use_errno=True)
BPF_FILE_SYSTEM = Path("/sys/fs/bpf")
OWNED = "podwire"
"""The folder of everything that podwire keeps there."""
_PASS = b"\xb7\x00\x00\x00\xff\xff\xff\xff" + b"\x95" + bytes(7)
"""The instructions ``r0 = -1; exit``: a program that leaves every packet alone."""


def check_file_system() -> None:
    """Raises: Unsupported when no BPF file system is mounted where pins are expected."""
    if not _is_mounted():
        raise Unsupported("bpffs", detail=f"no BPF file system is mounted on {BPF_FILE_SYSTEM}")


def mount_file_system() -> bool:
    """Mounts a BPF file system where pins are expected, unless one is there; whether it did.

    For programs in the machine's own mount namespace: a mount that a container makes for itself ends with it.

    Raises: Unsupported when the kernel has none, or the right is missing.
    """
    if _is_mounted():
        return False
    folder, kind = os.fsencode(BPF_FILE_SYSTEM), b"bpf"
    if _LIBC.mount(kind, folder, kind, MS_NOSUID | MS_NODEV | MS_NOEXEC, b"mode=700") != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Unsupported("bpffs", detail=f"a BPF file system cannot be mounted on {BPF_FILE_SYSTEM}: {reason}")
    return True


def _is_mounted() -> bool:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return any(line.split()[1:3] == [str(BPF_FILE_SYSTEM), "bpf"] for line in mounts)


def check_tcx() -> None:
    """Raises: Unsupported when the kernel has no TCX links; KernelError when that cannot be found out."""
    namespace = netns.create_anonymous()
    try:
        program = bpf_syscall.load_program(BPF_PROG_TYPE_SCHED_CLS, _PASS)
        try:
            with netns.inside(namespace):
                os.close(bpf_syscall.create_link(program, 1, BPF_TCX_INGRESS, 0, "lo"))
        except KernelError as failure:
            if failure.errno == 22:  # EINVAL: the attach type is not known.
                raise Unsupported("tcx", detail="the kernel knows no such link") from failure
            raise
        finally:
            os.close(program)
    finally:
        os.close(namespace)


@cache
def _has_tcx() -> bool:
    try:
        check_tcx()
    except Unsupported:
        return False
    return True


class BpfPins:
    """The folder of one owner, as seen from the thread's network namespace."""

    def __init__(self, folder: str, *, tcx: bool | None = None) -> None:
        self.folder = folder
        self.path = BPF_FILE_SYSTEM / OWNED / folder
        tcx = _has_tcx() if tcx is None else tcx
        self._attachments = BpfAttachments(self.path / "links", folder, tcx=tcx)

    def _pins(self, kind: str) -> tuple[Path, ...]:
        folder = self.path / kind
        return tuple(sorted(folder.iterdir())) if folder.is_dir() else ()

    def read(self) -> BpfFolder:
        """What the folder holds now; a program of another owner at a hook is shown by its number.

        Raises: KernelError.
        """
        programs, numbers = [], {}
        for path in self._pins("programs"):
            name, _, digest = path.name.rpartition("-")
            with _opened(path) as descriptor:
                numbers[bpf_syscall.program_id(descriptor)] = name, digest
            programs.append(BpfProgram(name, digest))
        maps = []
        for path in self._pins("maps"):
            with _opened(path) as descriptor:
                maps.append(bpf_objects.as_value(path.name, bpf_syscall.map_shape(descriptor)))
        attachments = tuple(
            BpfAttachment(device, hook, numbers[number][0] if number in numbers else f"number-{number}")
            for device, hook, number in self._attachments.read()
        )
        return BpfFolder(self.folder, tuple(programs), tuple(maps), attachments)

    def apply(self, desired: BpfFolder) -> tuple[str, ...]:
        """Makes the folder hold exactly the desired values; the changes as lines with ``+`` and ``-``.

        Raises: Unsupported, KernelError; attachments that the kernel did not refuse are in force.
        """
        present = self.read()
        if present == desired:
            return ()
        check_file_system()
        for kind in ("programs", "maps", "links"):
            (self.path / kind).mkdir(parents=True, exist_ok=True)
        if present.programs != desired.programs or present.maps != desired.maps:
            for program in desired.programs:
                self._load(program, {m.name: m for m in desired.maps})
        failures = self._attach(present, desired)
        self._remove_surplus(desired)
        if failures:
            raise failures[0]
        before, after = set(present.lines()), set(desired.lines())
        return (*(f"- {line}" for line in present.lines() if line not in after),
                *(f"+ {line}" for line in desired.lines() if line not in before))  # fmt: skip

    def _load(self, program: BpfProgram, maps: Mapping[str, BpfMap]) -> None:
        """Loads a program with the pinned maps of the right shape, and pins what is new."""
        if bpf_objects.digest(program.name) != program.digest:
            problem = "the package carries another version of the program"
            raise refusal("load", f"BPF program {program.name} {program.digest}", 22, problem)
        shapes, reused = bpf_objects.map_shapes(program.name), {}
        for path in self._pins("maps"):
            descriptor = bpf_syscall.open_pin(str(path))
            if path.name in maps and bpf_syscall.map_shape(descriptor) == shapes.get(path.name):
                reused[path.name] = descriptor
            else:
                os.close(descriptor)
        loaded, descriptors = bpf_objects.load(program.name, reused)
        try:
            for name, descriptor in descriptors.items():
                if name not in reused:
                    _pin_over(descriptor, self.path / "maps" / name)
            _pin_over(loaded, self.path / "programs" / f"{program.name}-{program.digest}")
        finally:
            for descriptor in (loaded, *descriptors.values(), *reused.values()):
                os.close(descriptor)

    def _attach(self, present: BpfFolder, desired: BpfFolder) -> list[KernelError]:
        failures: list[KernelError] = []
        reloaded = present.programs != desired.programs or present.maps != desired.maps
        for program in desired.programs:
            own = [a for a in desired.attachments if a.program == program.name]
            missing = [a for a in own if reloaded or a not in present.attachments]
            if not missing:
                continue
            with _opened(self.path / "programs" / f"{program.name}-{program.digest}") as descriptor:
                for attachment in missing:
                    try:
                        self._attachments.attach(attachment.device, attachment.hook, descriptor)
                    except KernelNotFound:
                        continue  # The device is gone; its attachment is no longer desired soon.
                    except KernelError as failure:
                        failures.append(failure)
        return failures

    def _remove_surplus(self, desired: BpfFolder) -> None:
        hooks = {(a.device, a.hook) for a in desired.attachments}
        for device, hook, _ in self._attachments.read():
            if (device, hook) not in hooks or not index_of(device):
                self._attachments.detach(device, hook)
        names = {f"{program.name}-{program.digest}" for program in desired.programs} | {m.name for m in desired.maps}
        for path in (*self._pins("programs"), *self._pins("maps")):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def open_map(self, name: str) -> BpfMapTable:
        """A pinned map.

        Raises: KernelNotFound, KernelError.
        """
        return BpfMapTable(bpf_syscall.open_pin(str(self.path / "maps" / name)), name)

    def remove(self) -> None:
        """Ends everything in the folder, and removes it.

        Raises: KernelError.
        """
        self.apply(BpfFolder(self.folder))
        remove_folder(self.folder)


def remove_folder(folder: str) -> None:
    """Removes the pins of a folder, with which its links, programs and maps end; no effect when there is none."""
    shutil.rmtree(BPF_FILE_SYSTEM / OWNED / folder, ignore_errors=True)


def folders() -> tuple[str, ...]:
    """The names of all folders of podwire on this machine."""
    owned = BPF_FILE_SYSTEM / OWNED
    return tuple(sorted(path.name for path in owned.iterdir())) if owned.is_dir() else ()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = bpf_syscall.open_pin(str(path))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pin_over(descriptor: int, path: Path) -> None:
    """Gives an object a name that another object may have now; the other one stays where it is in use."""
    path.unlink(missing_ok=True)
    bpf_syscall.pin(descriptor, str(path))


# The row of the kind of state


def read(netns_path: NetnsPath, names: Iterable[str]) -> tuple[BpfFolder, ...]:
    """The folders of these names, as seen from a namespace.

    Raises: KernelError.
    """
    with netns.inside(netns_path):
        return tuple(folder for name in names if (folder := BpfPins(name).read()) != BpfFolder(name))


def apply(netns_path: NetnsPath, _names: Iterable[str], desired: Iterable[BpfFolder]) -> tuple[str, ...]:
    """Makes each folder hold its desired values; returns the changes.

    Raises: Unsupported, KernelError.
    """
    with netns.inside(netns_path):
        return tuple(line for folder in desired for line in BpfPins(folder.folder).apply(folder))


def differs(netns_path: NetnsPath, desired: Iterable[BpfFolder]) -> bool:
    """Whether a folder does not hold its desired values.

    Raises: KernelError.
    """
    with netns.inside(netns_path):
        return any(BpfPins(folder.folder).read() != folder for folder in desired)


PROBES: dict[str, tuple[str, Callable[[], None]]] = {
    "bpffs": ("4.4", check_file_system),
    "tcx": ("6.6", check_tcx),
    "libbpf": ("", bpf_objects.check_library),
}
"""Probes for what programs need, with the first kernel that has it."""

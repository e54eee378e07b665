"""Network namespaces, without forks.

A namespace gets a name by a bind mount of its nsfs file on a path, as with ``ip netns``. To act inside a namespace, the
calling thread calls ``setns``, opens the socket or file, and returns with ``setns`` (0.03 ms; pyroute2 forks a child:
14-18 ms). A socket stays in the namespace in which it was opened, so the thread need not stay there.

/proc/sys/net and /proc/thread-self/net show the namespace of the thread; /proc/self/net shows that of the main thread
and is not used. Python 3.11 has no os.setns, hence ctypes.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from podwire.kernel.failure import refusal
from podwire.kernel.uapi import CLONE_NEWNET, MNT_DETACH, MS_BIND, MS_REC, MS_SHARED, NS_GET_NSTYPE

_LIBC = ctypes.CDLL(None, use_errno=True)
_OWN = "/proc/thread-self/ns/net"
_DESCRIPTORS = "/proc/self/fd/"
_IP_FOLDER = Path("/run/netns")
_DELETE_TRIES = 100
_DELETE_PAUSE_S = 0.01

T = TypeVar("T")

NetnsPath = Path | str | None
"""The mount point of a namespace; None stands for the namespace of the calling thread."""


def _call(operation: str, subject: str, function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        raise refusal(operation, subject, ctypes.get_errno())


def open_netns(path: Path | str) -> int:
    """A descriptor of the namespace; the caller closes it.

    Raises: KernelNotFound when the path does not exist, KernelError when it is not a namespace.
    """
    descriptor = _descriptor_of(path)
    try:
        return os.dup(descriptor) if descriptor >= 0 else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise refusal("open network namespace", str(path), failure.errno or 0) from failure


def _descriptor_of(path: Path | str) -> int:
    """The number in a path ``/proc/self/fd/N``, -1 for another path: to look such a path up takes 10 us."""
    if isinstance(path, str) and path.startswith(_DESCRIPTORS):
        number = path[len(_DESCRIPTORS) :]
        return int(number) if number.isdecimal() else -1
    return -1


@contextlib.contextmanager
def inside(netns: Path | str | int | None) -> Iterator[None]:
    """Runs the body with this thread in the namespace (a path or a descriptor; None: no change).

    The body must not await: another task would run in the wrong namespace.

    Raises: KernelNotFound, KernelError; the thread is then in its former namespace.
    """
    if netns is None:
        yield
        return
    before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(netns)
        try:
            yield
        finally:
            _call("return to network namespace", _OWN, _LIBC.setns, before, CLONE_NEWNET)
    finally:
        os.close(before)


def enter(netns: Path | str | int) -> None:
    """Moves this thread into the namespace permanently.

    Raises: KernelNotFound, KernelError.
    """
    if isinstance(netns, int):
        _call("enter network namespace", f"descriptor {netns}", _LIBC.setns, netns, CLONE_NEWNET)
        return
    descriptor = open_netns(netns)
    try:
        _call("enter network namespace", str(netns), _LIBC.setns, descriptor, CLONE_NEWNET)
    finally:
        os.close(descriptor)


def create(path: Path | str) -> None:
    """Creates a namespace and mounts it at ``path``, whose directory is created when missing; its ``lo`` is down.

    Raises: KernelExists when the path exists; KernelError, with nothing left behind.
    """
    mount_point = Path(path)
    mount_point.parent.mkdir(parents=True, exist_ok=True)
    if mount_point.parent == _IP_FOLDER:
        _share_ip_folder()
    try:
        os.close(os.open(mount_point, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    except OSError as failure:
        raise refusal("create network namespace", str(mount_point), failure.errno or 0) from failure
    try:
        with inside(_OWN):
            _call("create network namespace", str(mount_point), _LIBC.unshare, CLONE_NEWNET)
            _call(
                "mount network namespace",
                str(mount_point),
                _LIBC.mount,
                _OWN.encode(),
                os.fsencode(mount_point),
                b"none",
                MS_BIND,
                None,
            )
    except BaseException:
        with contextlib.suppress(OSError):
            mount_point.unlink()
        raise


def _share_ip_folder() -> None:
    """Makes the folder of ip-netns(8) a shared mount point, as ``ip netns add`` does when it is none.

    A namespace that is mounted before the first ``ip netns add`` of a machine would otherwise lie below that mount,
    where no path leads to it, and could never be deleted. Both programs take the lock of the folder.
    """
    folder = os.fsencode(_IP_FOLDER)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _LIBC.mount(b"", folder, b"none", MS_SHARED | MS_REC, None) != 0:
            _call("mount folder", str(_IP_FOLDER), _LIBC.mount, folder, folder, b"none", MS_BIND | MS_REC, None)
            _call("share mount", str(_IP_FOLDER), _LIBC.mount, b"", folder, b"none", MS_SHARED | MS_REC, None)
    finally:
        os.close(descriptor)


def create_anonymous() -> int:
    """A descriptor of a new namespace without a name, which ends with its last descriptor and socket.

    Raises: KernelError, EPERM without CAP_SYS_ADMIN.
    """
    with inside(_OWN):
        _call("create network namespace", "without a name", _LIBC.unshare, CLONE_NEWNET)
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def delete(path: Path | str) -> bool:
    """Unmounts the namespace and removes the path; False when the path did not exist.

    The kernel deletes the namespace itself in the background, when no process or socket is left in it. While another
    process creates or ends a mount namespace, the path can stay a mount point for some milliseconds after the unmount;
    the removal is retried for up to a second, and blocks this thread.

    Raises: KernelError, EBUSY when something else stays mounted on the path.
    """
    mount_point = Path(path)
    for tries_left in reversed(range(_DELETE_TRIES)):
        while exists(mount_point):
            unmount(mount_point)
        try:
            mount_point.unlink()
        except FileNotFoundError:
            return False
        except OSError as failure:
            if failure.errno != errno.EBUSY or not tries_left:
                raise refusal("delete network namespace", str(mount_point), failure.errno or 0) from failure
            select.select((), (), (), _DELETE_PAUSE_S)
        else:
            break
    return True


def unmount(path: Path | str) -> None:
    """Unmounts whatever is mounted on the path; new look-ups of the path no longer find it (MNT_DETACH).

    Raises: KernelError, EINVAL when the path is not a mount point.
    """
    _call("unmount", str(path), _LIBC.umount2, os.fsencode(path), MNT_DETACH)


def exists(path: Path | str) -> bool:
    """Whether a namespace is mounted at the path; a plain file that a killed process left is not one."""
    try:
        return Path(path).stat().st_dev == Path(_OWN).stat().st_dev
    except OSError:
        return False


def is_network(path: Path | str) -> bool:
    """Whether a path leads to a network namespace, and not to another kind of namespace or file."""
    if (passed := _descriptor_of(path)) >= 0:
        return _is_network(passed)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _is_network(descriptor)
    finally:
        os.close(descriptor)


def _is_network(descriptor: int) -> bool:
    try:
        return fcntl.ioctl(descriptor, NS_GET_NSTYPE) == CLONE_NEWNET
    except OSError:
        return False


def identity(path: Path | str | None = None) -> int:
    """The inode number that identifies a namespace; without a path that of this thread's namespace.

    Raises: KernelNotFound when the path does not exist.
    """
    descriptor = _descriptor_of(path) if path else -1
    try:
        if descriptor >= 0:
            return os.fstat(descriptor).st_ino
        return os.stat(path or _OWN).st_ino  # noqa: PTH116 - for each request, and a Path takes twice as long
    except OSError as failure:
        raise refusal("identify network namespace", str(path), failure.errno or 0) from failure


def run_inside(netns: Path | str | int | None, action: Callable[[], T]) -> T:
    """Calls ``action`` inside the namespace and returns its result."""
    if netns is None:
        return action()
    with inside(netns):
        return action()

"""The messages between the kubelet and a pod's shim, and the records that both keep in files.

A message is msgpack in the form of :mod:`podwire.runtime.messages`. The descriptors of ``exec`` and ``attach``
(standard input, output and errors) travel with the request. Each request has a number, which its answer repeats; a
message with number 0 is an event.
"""

from typing import Literal

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """One bind mount of a container; both paths absolute, ``source`` without symbolic links."""

    source: str
    target: str
    read_only: bool = False


class ProcessUser(msgspec.Struct, frozen=True):
    """The user and groups that a program runs as."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


class Privileges(msgspec.Struct, frozen=True):
    """The numbers of the capabilities that a program keeps (None: all), and whether it may gain privileges."""

    capabilities: tuple[int, ...] | None = None
    no_new_privileges: bool = False


class ContainerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One container to start.

    With ``entry`` a warm Python function (``standin``, ``dns``) runs in the forked process with ``payload``;
    otherwise ``argv`` is executed. ``record`` and ``log`` are files; ``termination`` is the source of the
    termination message and is mounted by one of ``mounts``.
    """

    name: str
    attempt: int
    id: str
    record: str
    log: str
    argv: tuple[str, ...] = ()
    executable: str = ""
    """The program that gets ``argv``; empty: the first word of ``argv``."""
    entry: str = ""
    payload: bytes = b""
    env: dict[str, str] = {}
    cwd: str = "/"
    mounts: tuple[Mount, ...] = ()
    files: dict[str, str] = {}
    """Small files of the container's own, path to text, such as /etc/hosts."""
    user: ProcessUser | None = None
    privileges: Privileges = Privileges()
    read_only_root: bool = False
    stdin: bool = False
    stdin_once: bool = False
    """Whether standard input ends with the first client that was attached to it."""
    tty: bool = False
    groups: tuple[str, ...] = ()
    """The cgroups that the container's processes join; the cgroup of version 2 is first."""
    memory_group: str = ""
    """The cgroup among ``groups`` that counts out-of-memory kills."""


class ExecOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A further program inside a running container; its three descriptors come with the message.

    The program has the environment and the working directory of the container. The shim knows both, so they do not
    depend on which kubelet started the container.
    """

    container: str
    argv: tuple[str, ...]
    user: ProcessUser | None = None
    privileges: Privileges = Privileges()
    tty: bool = False


class ShimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; ``pid`` and ``signal`` belong to ``signal``, a container's name to several."""

    number: int
    verb: Literal["start", "exec", "signal", "attach", "close"]
    container: str = ""
    pid: int = 0
    signal: int = 0
    start: ContainerOrder | None = None
    exec: ExecOrder | None = None


class ShimAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one request, or with number 0 an event: process ``pid`` ended with ``code``."""

    number: int = 0
    pid: int = 0
    code: int = 0
    problem: str = ""
    container: str = ""
    attempt: int = 0


class ShimOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a new shim; its listening socket is descriptor 3."""

    hostname: str
    root: str
    """An empty directory on which each container mounts its root, in its own mount namespace."""
    host_network: bool = False
    host_ipc: bool = False
    sysctls: tuple[tuple[str, str], ...] = ()
    """Name with dots, and value."""
    cgroup: str = ""
    """The cgroup that the shim joins."""
    binds: tuple[str, ...] = ()
    """Mount points of the machine, besides /proc, /sys and /dev, that containers see."""


RECORD_FORM = 1
"""The number of the form of both records."""


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container's run; written when it starts and again when it ends. Times are RFC 3339."""

    name: str
    attempt: int
    id: str
    log: str
    pid: int = 0
    entry: str = ""
    """The Python function that runs instead of a program: ``standin``, ``dns``, or empty."""
    started_at: str = ""
    finished_at: str = ""
    code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    format: int = 1
    """The number of the form."""

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return bool(self.finished_at)


class PodRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's sandbox; rewritten when it changes, read by a restarted kubelet."""

    uid: str
    namespace: str
    name: str
    sandbox: str = ""
    netns: str = ""
    ips: tuple[str, ...] = ()
    shim_pid: int = 0
    shim_ticks: int = 0
    cgroup: str = ""
    """The pod's folder in version 2."""
    attached: bool = False
    """Whether a CNI ADD was begun and no DEL has succeeded since."""
    port_mappings: tuple[dict[str, str | int], ...] = ()
    result: msgspec.Raw = msgspec.Raw(b"null")
    """The final result of the CNI ADD."""
    started_at: str = ""
    format: int = 1
    """The number of the form."""

"""The values that kernel parameters had before podwire wrote them, in a file, for ``podwire uninstall``.

The agent writes parameters inside of :func:`recording`. Each first write of a parameter of the node's own namespace
is recorded with the value before and the written value; a later write keeps the value before, unless the parameter
was changed by another program meanwhile (or by a restart of the machine): then that value is the one to go back to.
:func:`restore` writes the values before, where the parameters still have the values that podwire wrote. Parameters of
devices that come and go with podwire and its pods are not recorded: only those of devices that existed at the first
start. Cost: one more read and a write of the file for each recorded write, 5 to 20 in the life of a node.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import msgspec

from podwire.runtime.files import write_atomically
from podwire.runtime.stateform import check_form

_DEVICE = re.compile(r"net/ipv[46]/(?:conf|neigh)/(.+)/[^/]+")
_EVERY = frozenset({"all", "default", "lo"})


FORM = 1


class Recorded(msgspec.Struct, frozen=True):
    """One parameter: its value before podwire, and the last that podwire wrote."""

    before: str
    written: str


class RecordFile(msgspec.Struct, frozen=True):
    """What the file holds."""

    devices: tuple[str, ...] = ()
    """Devices of the node at the first start."""
    values: Mapping[str, Recorded] = {}
    format: int = FORM


class SysctlRecord:
    """The file, and what is in it."""

    def __init__(self, path: Path, devices: Iterable[str]) -> None:
        """Reads the file; one that is missing or broken begins with these devices.

        Raises: ConfigError when the file is of a later form.
        """
        self._path = path
        content = read(path)
        self._content = content if content.devices else RecordFile(tuple(devices))

    def follows(self, path: str) -> bool:
        """Whether writes of a parameter are recorded: not those of devices that podwire or its pods brought."""
        device = _DEVICE.fullmatch(path)
        return device is None or device[1] in _EVERY.union(self._content.devices)

    def note(self, path: str, current: str, value: str) -> None:
        """Records that a parameter is about to be written.

        Raises: OSError when the file cannot be written.
        """
        if current == value or not self.follows(path):
            return
        known = self._content.values.get(path)
        before = known.before if known and known.written == current else current
        values = {**self._content.values, path: Recorded(before, value)}
        self._content = msgspec.structs.replace(self._content, values=values)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, msgspec.json.encode(self._content))


def read(path: Path) -> RecordFile:
    """The content of a file; empty when it is missing or broken.

    Raises: ConfigError when it is of a later form.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=RecordFile)
    except (OSError, msgspec.MsgspecError):
        return RecordFile()
    check_form(content.format, FORM, str(path))
    return content


CURRENT: ContextVar[SysctlRecord | None] = ContextVar("sysctl record", default=None)
"""The record of this task and the tasks and threads that it starts."""


@contextmanager
def recording(record: SysctlRecord) -> Iterator[None]:
    """Records the writes of parameters inside of the block."""
    token = CURRENT.set(record)
    try:
        yield
    finally:
        CURRENT.reset(token)

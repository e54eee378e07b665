"""The stored conditions of a running cluster's links.

``<run>/lab.json`` has the changes of ``podwire lab``, ``<run>/lab-applied.json`` the conditions in the kernel. A module
of its own, so that commands which only show conditions need not import what applies them.
"""

from pathlib import Path

import msgspec

from podwire.local.lab.conditions import LabConditions, Links
from podwire.local.shape import recall_shape
from podwire.local.topology import Topology

_FILE = "lab.json"
_APPLIED = "lab-applied.json"
"""The conditions in the kernel, or more than these after an interruption."""


def read_changes(topology: Topology) -> LabConditions:
    """The changes of ``podwire lab``; none when the file is absent or unreadable."""
    return _read(Path(topology.run) / _FILE)


def read_applied(topology: Topology) -> LabConditions:
    """The conditions in the kernel, or more than these; none when the file is absent or unreadable."""
    return _read(Path(topology.run) / _APPLIED)


def _read(path: Path) -> LabConditions:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LabConditions)
    except (OSError, msgspec.MsgspecError):
        return LabConditions()


def write_changes(topology: Topology, changes: LabConditions) -> None:
    """Replaces the stored changes of ``podwire lab``."""
    path = Path(topology.run) / _FILE
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(changes))
    new.replace(path)


def write_applied(topology: Topology, conditions: LabConditions) -> None:
    """Replaces the stored conditions in the kernel."""
    (Path(topology.run) / _APPLIED).write_bytes(msgspec.json.encode(conditions))


def read_conditions(topology: Topology, configured: Links | None = None) -> LabConditions:
    """The configured conditions with the changes; ``configured`` None means those of the last complete ``up``."""
    if configured is None:
        shape = recall_shape(topology)
        configured = shape.links if shape is not None else {}
    return read_changes(topology).over(configured)

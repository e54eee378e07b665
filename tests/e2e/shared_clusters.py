"""Clusters that several files of tests use: their files run one after the other in the same worker.

A cluster begins with the first file and ends with the last one: a cluster of two nodes that nobody uses needs 2 % of a
processor.
"""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from tests.e2e.clusters import own_name
from tests.e2e.driver import Cluster

GROUPS = {
    "services": (
        "test_service_mode_under_load.py",
        "test_service_relay.py",
        "test_service_interference.py",
        "test_service_faults.py",
        "test_connection_table_full.py",
    ),
    "guarded": ("test_network_policy.py", "test_policy_connections.py"),
    "pair": ("test_api_away.py", "test_side_by_side.py"),
    "small": ("test_refusals.py", "test_commands.py"),
}
"""The files of each cluster, in the order in which they run where the order is not random."""
NAMES = {group: own_name(group) for group in GROUPS}
"""The names of the clusters, the same in every worker."""
_GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}


def in_groups(files: tuple[str, ...]) -> tuple[str, ...]:
    """File names with each group whole, at the place of the first of its files."""
    names: dict[str, None] = {}
    for file in files:
        names |= dict.fromkeys(GROUPS.get(_GROUP_OF.get(file, ""), (file,)))
    return tuple(names)


def mark(items: list[pytest.Item]) -> None:
    """Has the files of each group run in the same worker (``tests/forked_workers.py``)."""
    for item in items:
        if group := _GROUP_OF.get(item.path.name):
            item.add_marker(pytest.mark.worker(group))


class SharedClusters:
    """The clusters of groups that run now."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._ends: dict[str, ExitStack] = {}

    def enter(self, group: str, start: AbstractContextManager[Cluster]) -> Cluster:
        """The cluster of a group, which ``start`` makes where it does not run."""
        if group not in self._clusters:
            with ExitStack() as stack:
                self._clusters[group] = stack.enter_context(start)
                self._ends[group] = stack.pop_all()
        return self._clusters[group]

    def end_all_but(self, file: Path | None) -> None:
        """Removes the clusters that the tests of a file do not use; without a file, all clusters."""
        used = _GROUP_OF.get(file.name) if file is not None else None
        for group in self._clusters.keys() - {used}:
            del self._clusters[group]
            self._ends.pop(group).close()

"""A backup taken back on nodes of which one does not answer."""

import asyncio
from pathlib import Path
from typing import cast

from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.kube.client import Client
from podwire.upgrade.backup import transfer
from podwire.upgrade.backup.folder import BackupFolder
from podwire.upgrade.backup.index import BackupIndex
from podwire.upgrade.backup.restore import Restore
from podwire.upgrade.backup.save import BackupOptions
from podwire.upgrade.backup.transfer import NodeFile


def test_a_node_that_fails_does_not_stop_the_next_ones(tmp_path: Path) -> None:
    cluster = UpgradeCluster("a", "b")
    folder = BackupFolder(tmp_path / "backup")
    folder.prepare()
    entries = tuple(folder.put("configuration", "10-x.conflist", b"{}", node) for node in ("a", "b"))
    folder.finish(BackupIndex(cluster="uid-Namespace-kube-system", entries=entries))
    empty = "\n".join(transfer.lines([NodeFile(kind="programs", name="cni")]))
    cluster.answers["read"] = lambda node, _: (False, "no memory") if node == "a" else (True, empty)
    lines: list[str] = []
    restoring = Restore(cast("Client", cluster), folder, lines.append, force=False, dry=False)
    assert asyncio.run(restoring.run(BackupOptions(image="podwire:1"))) == 1
    assert lines[:2] == ["a: is not restored: a: read failed: no memory", "b: 10-x.conflist: restored"]
    assert ("b", "write") in cluster.steps

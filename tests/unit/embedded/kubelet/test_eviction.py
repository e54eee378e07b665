"""Pods that use more local storage than they may."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.eviction import StorageUsage, find_excess, is_limited, measure
from podwire.model.pod import Pod

MI = 1 << 20


def pod(limit: str = "", size: str = "") -> Pod:
    resources = {"limits": {"ephemeral-storage": limit}} if limit else {}
    volume: dict[str, Any] = {"name": "v", "emptyDir": {"sizeLimit": size} if size else {}}
    spec = {"containers": [{"name": "c", "resources": resources}], "volumes": [volume]}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("subject", "container", "volume", "message"),
    [
        (pod("5Mi"), 4 * MI, 0, ""),
        (pod("5Mi"), 6 * MI, 0, 'Container c exceeded its local ephemeral storage limit "5Mi". '),
        (pod("5Mi"), 3 * MI, 3 * MI, "Pod ephemeral local storage usage exceeds the total limit of containers. "),
        (pod(size="1Mi"), 9 * MI, 2 * MI, 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '),
        (pod(), 9 * MI, 9 * MI, ""),
    ],
)
def test_limits_of_local_storage(subject: Pod, container: int, volume: int, message: str) -> None:
    assert find_excess(subject, StorageUsage({"c": container}, {"v": volume})) == message


def test_only_pods_with_limits_are_measured() -> None:
    assert [is_limited(subject) for subject in (pod(), pod("1Mi"), pod(size="1Mi"))] == [False, True, True]


def test_usage_counts_logs_and_volumes(tmp_path: Path) -> None:
    for name in ("containers/c.0.log", "volumes/v/deep/file"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 8192)
    usage = measure(pod(), tmp_path, {"c": 0})
    assert usage == StorageUsage({"c": 8192}, {"v": 8192})

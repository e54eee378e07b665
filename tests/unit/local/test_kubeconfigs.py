"""A cluster's context in the user's own kubeconfig: added, added again, removed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from podwire.errors import ConfigError
from podwire.kube.config import load_kubeconfig
from podwire.local import credentials, kubeconfigs
from podwire.local.topology import Topology

_OWN = """
apiVersion: v1
kind: Config
clusters: [{name: podwire, cluster: {server: "https://127.0.0.1:%d", certificate-authority-data: %s}}]
users: [{name: podwire-admin, user: {token: x}}]
contexts: [{name: podwire, context: {cluster: podwire, user: podwire-admin}}]
current-context: podwire
"""
_THEIRS = """
apiVersion: v1
kind: Config
preferences: {colors: true}
clusters: [{name: prod, cluster: {server: "https://api.example:6443"}}]
users: [{name: me, user: {token: secret}}]
contexts: [{name: prod, context: {cluster: prod, user: me, namespace: shop}}]
current-context: prod
"""


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    result = Topology(
        name="podwire", index=0, segment_count=1, run=str(tmp_path / "run"), state=str(tmp_path / "state")
    )
    Path(result.run).mkdir()
    write_own(result, 6443)
    return result


def write_own(topology: Topology, port: int, authority: str = "b25l") -> None:
    file = credentials.kubeconfig_path(topology, "admin")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_OWN % (port, authority))


def read(file: Path) -> dict[str, Any]:
    result = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
    assert isinstance(result, dict)
    return result


def test_a_new_file_has_the_cluster_alone(topology: Topology, tmp_path: Path) -> None:
    file = tmp_path / "home/.kube/config"
    assert kubeconfigs.merge(topology, file) == "podwire"
    assert load_kubeconfig(file).server == "https://127.0.0.1:6443"
    assert file.stat().st_mode & 0o777 == 0o600


def test_other_entries_stay_as_they_are(topology: Topology, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(_THEIRS)
    file.chmod(0o640)
    kubeconfigs.merge(topology, file)
    merged = read(file)
    assert [entry["name"] for entry in merged["contexts"]] == ["prod", "podwire"]
    assert (merged["current-context"], merged["preferences"]) == ("podwire", {"colors": True})
    assert load_kubeconfig(file, "prod").token == "secret"
    assert file.stat().st_mode & 0o777 == 0o640


def test_merging_again_replaces_the_entries(topology: Topology, tmp_path: Path) -> None:
    file = tmp_path / "config"
    kubeconfigs.merge(topology, file)
    write_own(topology, 7443, "dHdv")
    kubeconfigs.merge(topology, file)
    assert [entry["cluster"]["server"] for entry in read(file)["clusters"]] == ["https://127.0.0.1:7443"]


def test_another_cluster_of_that_name_is_not_replaced(topology: Topology, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(_OWN % (9, "dHdv"))
    before = file.read_text()
    with pytest.raises(ConfigError, match="clusters: another cluster has the name 'podwire'"):
        kubeconfigs.merge(topology, file)
    assert file.read_text() == before


@pytest.mark.parametrize("text", ["- 1", "clusters: 7", "contexts: [x]", "a: ["])
def test_a_file_that_is_no_kubeconfig_is_refused(topology: Topology, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError):
        kubeconfigs.merge(topology, tmp_path / "config")
    assert (tmp_path / "config").read_text() == text


def test_a_cluster_that_goes_takes_its_context_along(topology: Topology, tmp_path: Path) -> None:
    file, gone = tmp_path / "config", tmp_path / "gone"
    file.write_text(_THEIRS)
    kubeconfigs.merge(topology, file)
    kubeconfigs.merge(topology, gone)
    gone.unlink()
    assert list(kubeconfigs.forget(topology)) == [file]
    assert read(file) == {**yaml.load(_THEIRS, Loader=yaml.CSafeLoader), "current-context": ""}
    assert list(kubeconfigs.forget(topology)) == []


def test_a_context_chosen_later_stays_current(topology: Topology, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(_THEIRS)
    kubeconfigs.merge(topology, file)
    file.write_text(file.read_text().replace("current-context: podwire", "current-context: prod"))
    list(kubeconfigs.forget(topology))
    assert read(file) == yaml.load(_THEIRS, Loader=yaml.CSafeLoader)

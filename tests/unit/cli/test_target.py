"""Which local cluster a kubeconfig is of."""

import shutil
from pathlib import Path

import msgspec
import pytest

from podwire.cli.target import local_cluster, running_cluster
from podwire.errors import ClusterError, ConfigError
from podwire.local import credentials, inventory
from podwire.local.topology import Topology

_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: me}}]
clusters: [{name: it, cluster: {server: "https://%s:%d", certificate-authority-data: %s}}]
users: [{name: me, user: {token: x}}]
"""


@pytest.fixture
def layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Topology]:
    """Two local clusters."""
    monkeypatch.setattr(inventory, "RUN_ROOT", tmp_path / "run")
    result = {}
    for number, name in enumerate(("one", "two")):
        run = tmp_path / "run" / name
        topology = Topology(
            name=name, index=number, segment_count=1, run=str(run), state=str(tmp_path / "state" / name)
        )
        run.mkdir(parents=True)
        (run / "layout.json").write_bytes(msgspec.json.encode(topology))
        file = credentials.kubeconfig_path(topology, "admin")
        file.parent.mkdir(parents=True)
        file.write_text(_KUBECONFIG % ("127.0.0.1", 6443 + number, "b25l"))
        result[name] = topology
    return result


def test_by_its_place(layouts: dict[str, Topology]) -> None:
    file = credentials.kubeconfig_path(layouts["two"], "admin")
    assert local_cluster("one", str(file), named=False) == layouts["two"]
    assert local_cluster("one", str(file), named=True) == layouts["one"]


def test_a_copy_by_where_it_leads_to(layouts: dict[str, Topology], tmp_path: Path) -> None:
    copied = shutil.copy(credentials.kubeconfig_path(layouts["two"], "admin"), tmp_path / "config")
    assert local_cluster("one", str(copied), named=False) == layouts["two"]


@pytest.mark.parametrize(
    "text",
    [
        _KUBECONFIG % ("127.0.0.1", 6443, "dHdv"),
        _KUBECONFIG % ("127.0.0.1", 9, "b25l"),
        _KUBECONFIG % ("api.example", 6443, "b25l"),
        "nothing",
    ],
)
def test_of_another_cluster(layouts: dict[str, Topology], tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    assert local_cluster("one", str(tmp_path / "config"), named=False) is None


def test_a_name_wins_over_a_kubeconfig(layouts: dict[str, Topology], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(credentials.kubeconfig_path(layouts["two"], "admin")))
    assert running_cluster("one") == layouts["one"]
    assert running_cluster(None) == layouts["two"]


def test_a_kubeconfig_that_is_missing_is_refused(layouts: dict[str, Topology], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    with pytest.raises(ConfigError) as refused:
        running_cluster(None)
    assert str(refused.value) == (
        "KUBECONFIG: /nowhere/config: cannot be read: No such file or directory; "
        "give --name (clusters here: one, two) or unset KUBECONFIG"
    )


def test_a_kubeconfig_of_another_cluster_is_refused(
    layouts: dict[str, Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(_KUBECONFIG % ("api.example", 6443, "b25l"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(ConfigError) as refused:
        running_cluster(None)
    output = str(refused.value)
    assert output.startswith(
        f"KUBECONFIG: {tmp_path}/config: context 'it' leads to https://api.example:6443, which is no"
    )
    assert output.endswith("; give --name (clusters here: one, two) or unset KUBECONFIG")


def test_missing_files_of_a_list_are_skipped(layouts: dict[str, Topology], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{credentials.kubeconfig_path(layouts['two'], 'admin')}")
    assert running_cluster(None) == layouts["two"]


def test_the_default_cluster_without_a_kubeconfig(
    layouts: dict[str, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ClusterError, match="no local cluster 'podwire'"):
        running_cluster(None)

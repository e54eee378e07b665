"""Which local cluster a kubeconfig is of."""

import shutil
from pathlib import Path

import msgspec
import pytest

from podwire.cli.target import local_cluster
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
    found = {}
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
        found[name] = topology
    return found


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

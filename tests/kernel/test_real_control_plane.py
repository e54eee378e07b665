"""What of the tier ``real`` runs without Kubernetes' programs: etcd, and the container runtime of each node."""

import datetime
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.reference_plugins import PLUGINS
from tests.real import credentials
from tests.real.cluster import RealCluster
from tests.real.layout import RUNTIME_SOCKET, RealLayout

from podwire.kernel import netns

PROGRAMS = {"etcd": Path("/usr/bin/etcd")}
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not PROGRAMS["etcd"].exists(), reason="needs etcd-server"),
    pytest.mark.skipif(not shutil.which("containerd") or not shutil.which("runc"), reason="needs containerd and runc"),
    pytest.mark.skipif(not shutil.which("loopback", path=PLUGINS), reason="needs containernetworking-plugins"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """The namespaces of one node, and the certificates."""
    layout = RealLayout(tmp_path, nodes=1)
    credentials.write(layout, datetime.datetime.now(datetime.UTC))
    created = RealCluster(layout, PROGRAMS, ())
    try:
        created.build_fabric()
        yield created
    finally:
        created.close()
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text()[-2000:])


def etcd_answers(layout: RealLayout, client: str) -> bytes:
    """The health of etcd as a client with a certificate sees it; without one it refuses."""
    context = ssl.create_default_context(cafile=layout.certificate("ca"))
    if client:
        context.load_cert_chain(layout.certificate(client), layout.key(client))
    with netns.inside(layout.fabric), urlopen("https://127.0.0.1:2379/health", context=context) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_etcd_serves_only_clients_with_a_certificate(cluster: RealCluster) -> None:
    cluster.start_etcd()
    assert b'"health":"true"' in eventually(lambda: etcd_answers(cluster.layout, "apiserver-etcd-client"), 60)
    with pytest.raises((URLError, OSError)):
        etcd_answers(cluster.layout, "")


@pytest.mark.slow
def test_a_node_has_a_runtime_in_folders_of_its_own(cluster: RealCluster) -> None:
    enter = cluster.start_runtime("node-1")
    images = ["ctr", "--address", RUNTIME_SOCKET, "-n", "k8s.io", "images", "ls", "-q"]
    shown = subprocess.run(["nsenter", *enter, "--", *images], capture_output=True, text=True, check=True)
    assert "podwire.test/pause:1" in shown.stdout.split()
    own = cluster.layout.node_folder("node-1") / "folders"
    assert (own / "opt/cni/bin/loopback").exists()
    assert (own / "run/containerd").is_dir(), "the socket of the node, not of the machine"
    address = subprocess.run(
        ["nsenter", *enter, "--", "ip", "-4", "address"], capture_output=True, text=True, check=True
    )
    assert "10.90.0.11/24" in address.stdout

"""Every part of a local cluster has a certificate with a name of its own."""

import base64
import datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from podwire.local import credentials
from podwire.local.topology import Topology

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    created = Topology(name="c", index=0, segment_count=1, run=str(tmp_path / "run"), state=str(tmp_path / "state"))
    Path(created.state).mkdir()
    credentials.ensure(created, 6443, ("10.96.0.1",), NOW)
    credentials.ensure_node(created, created.nodes(1)[0], NOW)
    return created


def signed_in(topology: Topology, user: str) -> tuple[str, list[str], str]:
    """User, groups and server of a kubeconfig."""
    document = yaml.load(credentials.kubeconfig_path(topology, user).read_text(), Loader=yaml.CSafeLoader)
    text = base64.b64decode(document["users"][0]["user"]["client-certificate-data"])
    subject = x509.load_pem_x509_certificate(text).subject
    groups = [str(result.value) for result in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    name = subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return str(name), groups, document["clusters"][0]["cluster"]["server"]


def test_each_part_has_its_own_user(topology: Topology) -> None:
    loopback, fabric = "https://127.0.0.1:6443", f"https://{topology.host_address}:6443"
    assert signed_in(topology, "admin") == ("kubernetes-admin", ["system:masters"], loopback)
    assert signed_in(topology, "controller-manager") == ("system:kube-controller-manager", [], loopback)
    assert signed_in(topology, "scheduler") == ("system:kube-scheduler", [], loopback)
    assert signed_in(topology, "node-1") == ("system:node:node-1", ["system:nodes"], fabric)
    assert signed_in(topology, "agent-node-1") == ("podwire:agent:node-1", ["podwire:agents"], fabric)


def test_existing_users_stay_and_missing_ones_are_made(topology: Topology) -> None:
    before = credentials.kubeconfig_path(topology, "node-1").read_bytes()
    credentials.kubeconfig_path(topology, "scheduler").unlink()
    credentials.kubeconfig_path(topology, "agent-node-1").unlink()
    assert credentials.ensure(topology, 6443, ("10.96.0.1",), NOW) is False
    credentials.ensure_node(topology, topology.nodes(1)[0], NOW)
    assert signed_in(topology, "scheduler")[0] == "system:kube-scheduler"
    assert signed_in(topology, "agent-node-1")[0] == "podwire:agent:node-1"
    assert credentials.kubeconfig_path(topology, "node-1").read_bytes() == before

"""Nodes of flanneld that keep their subnets in etcd, and a node of podwire: a real etcd with certificates."""

import base64
import datetime
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.kernel.agent_cluster import Machine, eventually
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Pod, inside, source_seen
from tests.kernel.test_flannel_nodes import ADDRESS, MAC, Flanneld

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.certificates import KeyPair
from podwire.kernel import netns
from podwire.kube.resources import NODES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FOLDER = "/coreos.com/network/subnets/"
URL = "https://10.89.0.1:2379"
OLD = "10.244.31.0-24"


class Etcd:
    """An etcd in the fabric, which takes clients with a certificate alone."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        root = machine.root
        self._tls = ssl.create_default_context(cafile=str(root / "ca.crt"))
        self._tls.load_cert_chain(root / "adm.crt", root / "adm.key")
        authority = KeyPair((root / "ca.crt").read_bytes(), (root / "ca.key").read_bytes())
        # etcd's gateway is a client of etcd with the certificate of the server.
        pair = certificates.issue(authority, "etcd", [], ["10.89.0.1"], "both", datetime.datetime.now(datetime.UTC))
        certificates.write_pair(root, "etcd", pair)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        root = self._machine.root
        options = {
            "data-dir": root / "etcd-data",
            "listen-client-urls": URL,
            "advertise-client-urls": URL,
            "listen-peer-urls": "http://127.0.0.1:2380",
            "cert-file": root / "etcd.crt",
            "key-file": root / "etcd.key",
            "trusted-ca-file": root / "ca.crt",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        with (root / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["nsenter", f"--net={self._machine.fabric}", "etcd", "--client-cert-auth", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )
        eventually(lambda: self.keys() is not None)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ask(self, verb: str, document: dict[str, Any]) -> Any:
        request = Request(f"{URL}/v3/kv/{verb}", json.dumps(document).encode())
        with netns.inside(self._machine.fabric), urlopen(request, timeout=20, context=self._tls) as answer:
            return json.loads(answer.read())

    def keys(self) -> dict[str, Any]:
        """The subnets with their values."""
        end = f"{FOLDER[:-1]}0"
        pairs = self.ask("range", {"key": _coded(FOLDER), "range_end": _coded(end)}).get("kvs", ())
        texts = ((base64.b64decode(pair["key"]).decode(), base64.b64decode(pair["value"])) for pair in pairs)
        return {key.removeprefix(FOLDER): json.loads(value) for key, value in texts}

    def lease_flanneld(self, mac: str) -> None:
        """Writes the lease of the node of flanneld, as flanneld writes it."""
        value = {"PublicIP": ADDRESS, "BackendType": "vxlan", "BackendData": {"VNI": 1, "VtepMAC": mac}}
        self.ask("put", {"key": _coded(FOLDER + OLD), "value": _coded(json.dumps(value))})


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.close()
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text()[-2000:])


@pytest.fixture
def etcd(machine: Machine) -> Iterator[Etcd]:
    made = Etcd(machine)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def join(machine: Machine) -> Path:
    net_conf = machine.root / "net-conf.json"
    net_conf.write_text('{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}')
    machine.add_node(1, start=False)
    file = machine.root / "node-1.yaml"
    files = {f"{key}File": str(machine.root / name) for key, name in (("ca", "ca.crt"), ("cert", "adm.crt"))}
    etcd = {"endpoints": ["https://10.89.0.1:2", URL], "keyFile": str(machine.root / "adm.key"), **files}
    section = {"netConf": str(net_conf), "announce": True, "etcd": etcd}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"flannel": section}))
    machine.start_agent("node-1")
    eventually(lambda: machine.ready("node-1"))
    return machine.root / "node-1"


def test_nodes_of_flanneld_in_etcd_are_peers_both_ways(machine: Machine, etcd: Etcd) -> None:
    old = Flanneld(machine)
    etcd.lease_flanneld(MAC)
    place = join(machine)

    def entries() -> str:
        return inside(place, "bridge", "fdb", "show", "dev", "podwire-vxlan")

    eventually(lambda: f"{MAC} dst {ADDRESS}" in entries())
    device = json.loads(inside(place, "ip", "-j", "link", "show", "podwire-vxlan"))[0]["address"]
    expected = {"PublicIP": "10.89.0.11", "BackendType": "vxlan", "BackendData": {"VNI": 1, "VtepMAC": device}}
    eventually(lambda: etcd.keys().get("10.244.1.0-24") == expected)
    neighbour = ("ip", "neigh", "replace", "10.244.1.0", "lladdr", device, "dev", "flannel.1", "nud", "permanent")
    inside(old.place, *neighbour)
    inside(old.place, "bridge", "fdb", "append", device, "dev", "flannel.1", "dst", "10.89.0.11", "self", "permanent")
    inside(old.place, "ip", "route", "replace", "10.244.1.0/24", "via", "10.244.1.0", "dev", "flannel.1", "onlink")
    pod = Pod(machine.root / "pods" / "a", machine.pod("node-1", "a"))
    with pod.running(SOURCE_REPLY_SERVER), old.pod.running(SOURCE_REPLY_SERVER):
        assert source_seen(pod.place, old.pod.address) == pod.address
        assert source_seen(old.pod.place, pod.address) == old.pod.address

        etcd.stop()
        machine.kill("node-1")
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1"))
        assert source_seen(pod.place, old.pod.address) == pod.address, "the kept leases are in force without etcd"

    def problem() -> str:
        annotations = machine.api("get", NODES, "node-1")["metadata"].get("annotations", {})
        return str(annotations.get("podwire.io/fallback", ""))

    eventually(lambda: "flannel.etcd: https://10.89.0.1:2, " in problem())
    etcd.start()
    etcd.lease_flanneld("8a:34:5e:00:00:77")
    eventually(lambda: f"8a:34:5e:00:00:77 dst {ADDRESS}" in entries() and MAC not in entries())
    eventually(lambda: problem() == "")
    etcd.ask("deleterange", {"key": _coded(FOLDER + OLD)})
    eventually(lambda: ADDRESS not in entries())
    assert "10.244.31.0/24" not in inside(place, "ip", "route")

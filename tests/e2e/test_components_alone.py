"""Each component runs alone, against any API server, with the parts that its configuration names."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import address_of, netns_of, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually, podwire, shell_pod

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.kernel import netns
from podwire.kernel.features import Features
from podwire.local import credentials

NAME = own_name("alone")
WITHOUT_NFTABLES = [sys.executable, str(Path(__file__).with_name("without_nftables.py"))]
NODE = """
apiVersion: v1
kind: Node
metadata: {name: %s}
"""
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: one}, ports: [{port: 80}]}
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Cluster]:
    """A cluster whose API the components use; they run in the network of its pod ``place``."""
    manifest = f"{server('one')}{SERVICE}---{shell_pod('place', 'sleep 600')}"
    with running(NAME, "--nodes", "1", stdin=manifest) as cluster:
        yield cluster


@pytest.fixture
def place(home: Cluster) -> Path:
    """The network namespace of a pod: it reaches the API as every pod does."""
    return netns_of(home, "place")


def kubeconfig(cluster: Cluster) -> str:
    """A kubeconfig that may do everything, with the address of the API on the fabric."""
    if not cluster.name:
        return cluster.kubeconfig
    layout = topology(cluster)
    file = Path(layout.run, "admin-on-fabric.kubeconfig")
    fabric = f"server: https://{layout.host_address}:{credentials.API_FABRIC_PORT}"
    file.write_text(re.sub(r"server: https://127\.0\.0\.1:\d+", fabric, Path(cluster.kubeconfig).read_text()))
    return str(file)


class Component:
    """A running component; ``log`` holds its output."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def log(self) -> str:
        return self._file.read_text()


@contextmanager
def component(
    arguments: Sequence[str], config: Path, document: dict[str, Any], cluster: Cluster
) -> Iterator[Component]:
    """Runs a command with a configuration and the cluster's API; asserts that the command exits with status 0."""
    config.write_text(json.dumps(document))
    file = config.with_suffix(".log")
    with file.open("wb") as log:
        process = subprocess.Popen(
            [*arguments, "--config", str(config), "--kubeconfig", kubeconfig(cluster)], stdout=log, stderr=log
        )
    try:
        yield Component(process, file)
    except BaseException:
        print(file.read_text())
        raise
    else:
        assert process.poll() is None, file.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, file.read_text()
        assert "Traceback" not in file.read_text()
    finally:
        process.kill()
        process.wait()


def inside(place: Path, *command: str) -> str:
    result = subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=True)
    return result.stdout


def ready(place: Path, port: int) -> tuple[int, str]:
    """The answer of ``/readyz``."""
    with netns.inside(place):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""


@contextmanager
def node(cluster: Cluster, name: str, address: str = "") -> Iterator[None]:
    """A Node object without a kubelet."""
    cluster.apply(NODE % name)
    try:
        if address:
            status = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
            cluster.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(status))
        eventually(lambda: pod_cidr(cluster, name))
        yield
    finally:
        cluster.kubectl("delete", "node", name)


@contextmanager
def bare_api(cluster: Cluster, folder: Path) -> Iterator[Cluster]:
    """An API server with the certificate authority of the cluster and without other components."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    keys = credentials.folder(topology(cluster))
    (folder / "apiserver.yaml").write_text(
        json.dumps(
            {
                "listen": [f"127.0.0.1:{port}"], "state": str(folder / "api.db"),
                "certificate": f"{keys}/apiserver.crt", "key": f"{keys}/apiserver.key",
                "clientCa": f"{keys}/ca.crt", "signingKey": f"{keys}/tokens.key",
            }
        )
    )  # fmt: skip
    known = Path(cluster.kubeconfig).read_text()
    address = cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    own = folder / "kubeconfig"
    own.write_text(known.replace(address, f"https://127.0.0.1:{port}"))
    log = (folder / "apiserver.log").open("wb")
    process = subprocess.Popen([*podwire(), "apiserver", "--config", str(folder / "apiserver.yaml")], stderr=log)
    try:
        bare = Cluster("", str(own))
        eventually(lambda: bare.run(["kubectl", "get", "--raw", "/readyz"]).stdout == "ok")
        yield bare
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def pod_cidr(cluster: Cluster, name: str) -> str:
    return str(cluster.get("node", name).get("spec", {}).get("podCIDR", ""))


def annotations(cluster: Cluster, name: str) -> dict[str, str]:
    return dict(cluster.get("node", name)["metadata"].get("annotations") or {})


def agent(tmp_path: Path, name: str, parts: list[str], port: int) -> dict[str, Any]:
    return {
        "nodeName": name, "parts": parts, "runDir": str(tmp_path / "run"), "stateDir": str(tmp_path / "state"),
        "clusterCIDRs": ["10.244.0.0/16"], "serviceCIDRs": ["10.96.0.0/16"], "health": {"port": port},
    }  # fmt: skip


def held(place: Path) -> list[set[str]]:
    """Names and addresses of the links, and the routes; not whether a link is up, which takes the kernel a moment."""
    links = {" ".join(line.split()[::2]) for line in inside(place, "ip", "-br", "address").splitlines()}
    return [links, set(inside(place, "ip", "route").splitlines())]


def test_agent_with_only_the_proxy_makes_only_its_tables(home: Cluster, place: Path, tmp_path: Path) -> None:
    before = held(place)
    arguments = ["nsenter", f"--net={place}", *podwire(), "agent"]
    with (
        node(home, "alone"),
        component(arguments, tmp_path / "agent.yaml", agent(tmp_path, "alone", ["proxy"], 9551), home) as running_agent,
    ):
        eventually(lambda: annotations(home, "alone").get("podwire.io/proxy") == "nftables")
        eventually(lambda: ready(place, 9551) == (200, "ok\n"))
        tables = inside(place, "nft", "list", "tables").split("\n")
        assert {line.split()[-1] for line in tables if line} == {"podwire-proxy"}
        address = home.get("service", "web")["spec"]["clusterIP"]
        assert address in inside(place, "nft", "list", "ruleset")
        home.apply(SERVICE.replace("name: web", "name: later"))
        later = home.get("service", "later")["spec"]["clusterIP"]
        eventually(lambda: later in inside(place, "nft", "list", "ruleset"))
        assert not {"podwire.io/routing", "podwire.io/routing-facts"} & set(annotations(home, "alone"))
        assert not (tmp_path / "run/cni.sock").exists()
        assert "parts=proxy" in running_agent.log
    assert held(place) == before
    assert address in inside(place, "nft", "list", "ruleset"), "what it made outlives it"


def test_missing_kernel_features_are_named_on_node_and_in_status(home: Cluster, place: Path, tmp_path: Path) -> None:
    arguments = ["nsenter", f"--net={place}", *WITHOUT_NFTABLES, *podwire(), "agent"]
    config = agent(tmp_path, "poor", ["routing", "proxy"], 9552)
    reported = (
        "routing: the kernel has no nftables (in Linux since 3.13); packets that leave the cluster keep the pods' "
        "addresses"
    )
    with node(home, "poor", address_of(home, "place")), component(arguments, tmp_path / "agent.yaml", config, home):
        eventually(lambda: reported in annotations(home, "poor").get("podwire.io/fallback", ""))
        instead = "proxy.mode nftables: the kernel has no nftables (in Linux since 3.13); iptables is used"
        eventually(lambda: instead in annotations(home, "poor").get("podwire.io/fallback", ""))
        eventually(lambda: annotations(home, "poor").get("podwire.io/routing") == "vxlan")
        eventually(lambda: "dev podwire-vxlan" in inside(place, "ip", "route", "show", "proto", "113"))
        eventually(lambda: annotations(home, "poor").get("podwire.io/proxy") == "iptables")
        address = home.get("service", "web")["spec"]["clusterIP"]
        assert address in inside(place, "iptables-legacy", "-t", "nat", "-S", "KUBE-SERVICES")
        eventually(lambda: ready(place, 9552) == (200, "ok\n"))
        output = home.run([*podwire(), "status", "--name", NAME]).stdout
        assert reported in output and "poor: " in output
        selector = "involvedObject.name=poor,reason=FeatureMissing"
        eventually(lambda: len(home.get("events", "-A", "--field-selector", selector)["items"]) == 2)


def test_a_node_without_wireguard_go_refuses_packets_and_says_why(home: Cluster, place: Path, tmp_path: Path) -> None:
    hidden = 'mount --bind /dev/null /usr/bin/wireguard-go && exec "$@"'
    arguments = ["nsenter", f"--net={place}", "unshare", "--mount", "sh", "-c", hidden, "sh", *podwire(), "agent"]
    config = agent(tmp_path, "clear", ["routing"], 9554) | {"routing": {"backend": "wireguard"}, "settings": ""}
    reported = (
        "routing.backend wireguard: the program wireguard-go is not installed (in Debian's package wireguard-go; "
    )

    def condition() -> dict[str, str]:
        result = home.get("node", "clear").get("status", {}).get("conditions", [])
        return next((dict(item) for item in result if item["type"] == "NetworkUnavailable"), {})

    try:
        with (
            node(home, "clear", address_of(home, "place")),
            component(arguments, tmp_path / "agent.yaml", config, home),
        ):
            eventually(lambda: reported in condition().get("message", "") and condition()["status"] == "True")
            eventually(lambda: reported in annotations(home, "clear").get("podwire.io/fallback", ""))
            assert annotations(home, "clear")["podwire.io/routing"] == "wireguard"
            routes = inside(place, "ip", "route", "show", "proto", "113")
            assert "unreachable 10.244.0.0/16" in routes and " via " not in routes
            assert reported in home.run([*podwire(), "status", "--name", NAME]).stdout
            selector = "involvedObject.name=clear,reason=FeatureMissing"
            eventually(lambda: reported in str(home.get("events", "-A", "--field-selector", selector)["items"]))
    finally:
        inside(place, "ip", "route", "flush", "proto", "113")


@pytest.mark.parametrize(("configured", "used"), [({}, "nftables"), ({"fallback": "iptables"}, "iptables")])
def test_missing_ip_vs_is_reported_and_replaced_by_another_mode(
    home: Cluster, place: Path, tmp_path: Path, configured: dict[str, str], used: str
) -> None:
    if Features().probe("ip_vs").verdict != "no":
        pytest.skip("this kernel has ip_vs")
    name = f"stand-in-{used}"
    config = agent(tmp_path, name, ["proxy"], 9553) | {"proxy": {"mode": "ipvs", **configured}, "settings": ""}
    arguments = ["nsenter", f"--net={place}", *podwire(), "agent"]
    reported = f"proxy.mode ipvs: the kernel has no ip_vs (in Linux since 2.6.28); {used} is used"
    with (
        node(home, name, address_of(home, "place")),
        component(arguments, tmp_path / "agent.yaml", config, home) as created,
    ):
        eventually(lambda: annotations(home, name).get("podwire.io/proxy") == used)
        eventually(lambda: annotations(home, name).get("podwire.io/fallback") == reported)
        assert reported in created.log
        assert reported in home.run([*podwire(), "status", "--name", NAME]).stdout
        selector = f"involvedObject.name={name},reason=FeatureMissing"
        eventually(lambda: reported in str(home.get("events", "-A", "--field-selector", selector)["items"]))
        eventually(lambda: ready(place, 9553) == (200, "ok\n"))
        with netns.inside(place), urllib.request.urlopen("http://127.0.0.1:9553/metrics", timeout=30) as answer:
            assert f'podwire_proxy_mode{{mode="{used}",wanted="ipvs"}} 1' in answer.read().decode()
        address = home.get("service", "web")["spec"]["clusterIP"]
        rules = inside(place, "iptables-save") if used == "iptables" else inside(place, "nft", "list", "ruleset")
        assert address in rules
        assert "kube-ipvs0" not in inside(place, "ip", "link")


def test_a_controller_with_one_part_does_that_part_alone(home: Cluster, tmp_path: Path) -> None:
    """This API server has no other controller, so each change comes from the controller of the test."""
    with bare_api(home, tmp_path) as api:
        document = {"kubeconfig": "", "controller": {"parts": ["nodeipam"], "clusterCIDRs": ["10.77.0.0/16"]}}
        with component([*podwire(), "controller"], tmp_path / "controller.yaml", document, api):
            api.apply(NODE % "first")
            eventually(lambda: pod_cidr(api, "first") == "10.77.0.0/24")
            api.apply(SERVICE)
            api.apply(NODE % "second")
            eventually(lambda: pod_cidr(api, "second") == "10.77.1.0/24")
            slices = api.get("endpointslices", "-n", "default")["items"]
            assert [
                endpoint_slice["metadata"]["name"]
                for endpoint_slice in slices
                if endpoint_slice["metadata"]["name"] != "kubernetes"
            ] == []
        document["controller"] = {"parts": ["endpointslice"]}
        with component([*podwire(), "controller"], tmp_path / "controller.yaml", document, api):
            selector = "kubernetes.io/service-name=web"
            eventually(lambda: len(api.get("endpointslices", "-l", selector)["items"]) == 1)
            api.apply(NODE % "third")
            time.sleep(0.5)
            assert pod_cidr(api, "third") == ""


def test_dns_answers_for_the_services_of_any_cluster(home: Cluster, place: Path, tmp_path: Path) -> None:
    document = {"listen": ["127.0.0.1"], "port": 5399, "healthPort": 5398, "readyPort": 5397, "metricsPort": 5396,
                "httpAddress": "127.0.0.1", "upstreams": ["127.0.0.1:9"]}  # fmt: skip
    query = wire.encode(
        wire.DnsMessage(id=7, flags=wire.RD, name=encode_name("web.default.svc.cluster.local"), qtype=wire.A)
    )

    def answer() -> str:
        with netns.inside(place):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sock:
            sock.settimeout(1)
            try:
                sock.connect(("127.0.0.1", 5399))
                sock.send(query)
                message = wire.parse_message(sock.recv(4096))
            except OSError:
                return ""
        return ".".join(str(byte) for record in message.answer for byte in record.head + record.tail)

    arguments = ["nsenter", f"--net={place}", *podwire(), "dns"]
    with component(arguments, tmp_path / "dns.yaml", document, home):
        expected = home.get("service", "web")["spec"]["clusterIP"]
        eventually(lambda: answer() == expected)


def test_a_kubelet_registers_its_node_and_says_what_it_lacks(home: Cluster, place: Path, tmp_path: Path) -> None:
    for folder in ("run", "state", "netns", "bin", "conf"):
        (tmp_path / folder).mkdir()
    document = {
        "node": "extra", "kubeconfig": "", "runDir": str(tmp_path / "run"), "stateDir": str(tmp_path / "state"),
        "netnsDir": str(tmp_path / "netns"),
        "cni": {"binDir": str(tmp_path / "bin"), "confDir": str(tmp_path / "conf")},
        "addresses": ["192.0.2.7"],
    }  # fmt: skip

    def condition() -> dict[str, str]:
        result = home.run(["kubectl", "get", "node", "extra", "-o", "json"])
        status = json.loads(result.stdout)["status"] if result.returncode == 0 else {}
        return next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})

    try:
        arguments = ["nsenter", f"--net={place}", *podwire(), "kubelet"]
        with component(arguments, tmp_path / "kubelet.yaml", document, home):
            eventually(lambda: condition().get("status") == "False" and "network" in condition()["message"])
            addresses = home.get("node", "extra")["status"]["addresses"]
            assert {"type": "InternalIP", "address": "192.0.2.7"} in addresses
    finally:
        home.run(["kubectl", "delete", "node", "extra"])


@pytest.mark.parametrize(
    ("name", "document", "output"),
    [
        ("agent", {"nodeName": "a", "parts": ["proxy", "magic"]}, "parts[1]: 'magic' is not a part"),
        (
            "agent",
            {"nodeName": "a", "parts": ["proxy"], "proxy": {"mode": "magic"}},
            "proxy.mode: 'magic' is not a data plane",
        ),
        (
            "controller",
            {"kubeconfig": "", "controller": {"parts": ["magic"]}},
            "'magic' is not a controller; expected one of nodeipam",
        ),
        ("controller", {"kubeconfig": "", "controler": {}}, "unknown field `controler`"),
        ("dns", {"prot": 53}, "unknown field `prot`"),
        ("kubelet", {"node": 7}, "node: expected a text, got a whole number"),
        ("apiserver", {"listen": "here"}, "listen: expected a list, got a text"),
    ],
)
def test_a_wrong_configuration_is_refused(
    home: Cluster, tmp_path: Path, name: str, document: dict[str, Any], output: str
) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(document))
    api = ("--kubeconfig", kubeconfig(home)) if name != "apiserver" else ()
    result = run(name, "--config", str(tmp_path / "c.yaml"), *api)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert output in result.stderr and "Traceback" not in result.stderr

"""Command lines and files of a real control plane."""

import datetime
import json
import ssl
from pathlib import Path

import pytest
import yaml
from tests.real import binaries, commands, credentials
from tests.real.__main__ import main, show, with_focus
from tests.real.layout import SHARED_FOLDERS, RealLayout

from podwire.kube.config import load_kubeconfig

LAYOUT = RealLayout(Path("/r"), nodes=2)


def options(words: list[str]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in words[1:])


def test_apiserver_trusts_the_authorities_and_signs_tokens() -> None:
    given = options(commands.apiserver(Path("/k/kube-apiserver"), LAYOUT))
    assert given["client-ca-file"] == given["etcd-cafile"] == given["kubelet-certificate-authority"] == "/r/keys/ca.crt"
    assert given["requestheader-client-ca-file"] == "/r/keys/front-proxy-ca.crt"
    assert given["service-account-key-file"] == "/r/keys/service-accounts.pub"
    assert given["service-account-signing-key-file"] == "/r/keys/service-accounts.key"
    assert (given["authorization-mode"], given["enable-admission-plugins"]) == ("Node,RBAC", "NodeRestriction")
    assert given["etcd-servers"] == options(commands.etcd(Path("/k/etcd"), LAYOUT))["advertise-client-urls"]


def test_controllers_give_nodes_their_pod_ranges() -> None:
    given = options(commands.controller_manager(Path("/k/kube-controller-manager"), LAYOUT))
    assert (given["allocate-node-cidrs"], given["cluster-cidr"]) == ("true", "10.244.0.0/16")
    assert commands.chart_values("localhost/podwire:1")["clusterCIDRs"] == [given["cluster-cidr"]]
    assert given["kubeconfig"] == given["authorization-kubeconfig"] == "/r/keys/controller-manager.kubeconfig"
    assert options(commands.scheduler(Path("/k/s"), LAYOUT))["kubeconfig"] == "/r/keys/scheduler.kubeconfig"


def test_each_kubelet_has_its_own_name_address_and_certificate() -> None:
    given = options(commands.kubelet(Path("/k/kubelet"), LAYOUT, "node-2"))
    assert given == {
        "kubeconfig": "/r/keys/node-2.kubeconfig",
        "config": "/r/node-2/kubelet.json",
        "hostname-override": "node-2",
        "node-ip": "10.90.0.12",
    }
    document = commands.kubelet_configuration(LAYOUT, "node-2")
    assert document["tlsCertFile"] == "/r/keys/kubelet-node-2.crt"
    assert document["authentication"]["anonymous"] == {"enabled": False}
    assert json.loads(json.dumps(document)) == document


def test_every_folder_of_a_node_is_its_own() -> None:
    script = commands.mounts(LAYOUT, "node-1").splitlines()
    for folder in SHARED_FOLDERS:
        assert f"mount --bind /r/node-1/folders{folder} {folder}" in script
    assert script[-2:] == ["echo ready", "exec sleep infinity"]


def test_chart_values_name_the_image_and_the_api() -> None:
    values = commands.chart_values("localhost:5000/podwire:real")
    assert values["image"] == {"repository": "localhost:5000/podwire", "tag": "real", "pullPolicy": "Never"}
    assert values["api"] == {"host": "10.90.0.1", "port": 6443}
    schema = json.loads((Path(__file__).parents[3] / "deploy/helm/podwire/values.schema.json").read_text())
    assert values.keys() <= schema["properties"].keys()


def test_credentials_load_and_name_their_users(tmp_path: Path) -> None:
    layout = RealLayout(tmp_path, nodes=1)
    credentials.write(layout, datetime.datetime.now(datetime.UTC))
    for user in ("admin", "controller-manager", "scheduler", "node-1"):
        config = load_kubeconfig(layout.kubeconfig(user))
        assert config.server == "https://10.90.0.1:6443"
        assert config.ssl_context() is not None
    for name in ("etcd", "apiserver", "kubelet-node-1", "front-proxy-client"):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(layout.certificate(name), layout.key(name))
    assert (layout.keys / "service-accounts.pub").read_text().startswith("-----BEGIN PUBLIC KEY-----")
    assert (
        yaml.load(Path(layout.kubeconfig("node-1")).read_text(), Loader=yaml.CSafeLoader)["users"][0]["name"]
        == "system:node:node-1"
    )


def program(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_missing_programs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, machine = tmp_path / "k", tmp_path / "m"
    for name in binaries.PROGRAMS[1:-1]:
        program(folder, name)
    for name in (*binaries.TOOLS, "etcd"):
        program(machine, name)
    programs, missing = binaries.find(folder, str(machine))
    assert missing == [f"e2e.test in {folder}"]
    assert (programs["etcd"], programs["kubelet"]) == (machine / "etcd", folder / "kubelet")
    (machine / "runc").unlink()
    assert main({"KUBERNETES_BIN": str(folder), "PATH": str(machine), "PODWIRE_IMAGE": "/no/image.tar"}) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "real: missing:", f"  e2e.test in {folder}", "  runc on this machine", "  PODWIRE_IMAGE: /no/image.tar",
    ]  # fmt: skip
    assert main({"PATH": str(machine)}) == 2
    assert "kubelet in the folder of KUBERNETES_BIN, which is not set" in capsys.readouterr().err


def test_counts_are_those_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "junit_01.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="[It] [sig-network] DNS"/>'
        '<testcase name="[It] [sig-network] Services"><failure message="timed out"/></testcase>'
        '<testcase name="[It] [sig-apps] Job"><skipped/></testcase></testsuite></testsuites>'
    )
    assert show(report) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"
    assert show(tmp_path / "none.xml") == 1
    assert "failed: the suite: no report" in capsys.readouterr().out


def test_focus_replaces_the_choice_of_specs() -> None:
    words = ["e2e.test", "--ginkgo.focus=a", "--ginkgo.timeout=3h"]
    assert with_focus(words, "") == words
    assert with_focus(words, "b")[1] == "--ginkgo.focus=b"

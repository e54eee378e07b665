"""Flannel's file in the configuration of an agent, and what an agent writes for Flannel."""

import json
from pathlib import Path

import pytest
from tests.unit.routing.test_paths import ME

from podwire.agent.config import AgentConfig, EtcdSection, FlannelSection, parse
from podwire.agent.flannel import FlannelOutput
from podwire.agent.flanneletcd import tls_of
from podwire.errors import ConfigError
from podwire.routing.plan import Plan, plan
from podwire.routing.settings import parse_settings
from podwire.routing.tunnels import tunnel_mac


def planned(**routing: object) -> Plan:
    settings = parse_settings(routing, "test")
    return plan(ME, (), settings, settings.load(), ())


@pytest.fixture
def net_conf(tmp_path: Path) -> Path:
    file = tmp_path / "net-conf.json"
    file.write_text('{"Network": "10.99.0.0/16", "Backend": {"Type": "vxlan", "DirectRouting": true}}')
    return file


def read(net_conf: Path, **more: object) -> AgentConfig:
    return parse(json.dumps({"nodeName": "a", "flannel": {"netConf": str(net_conf)}, **more}), "agent.yaml")


def test_the_file_is_the_source_of_networks_and_routing(net_conf: Path) -> None:
    config = read(net_conf, routing={"masquerade": False})
    assert config.cluster_cidrs == ("10.99.0.0/16",)
    fields = config.routing_settings.fields()
    assert {key: fields[key] for key in ("backend", "vni", "port", "directRouting", "masquerade")} == {
        "backend": "vxlan",
        "vni": 1,
        "port": 8472,
        "directRouting": True,
        "masquerade": False,
    }
    assert read(net_conf, clusterCIDRs=["10.99.0.0/16"], routing={"vni": 1}).cluster_cidrs == config.cluster_cidrs


def test_two_sources_that_differ_are_refused(net_conf: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent.yaml: clusterCIDRs: differs from .*net-conf.json, which has 10.99"):
        read(net_conf, clusterCIDRs=["10.98.0.0/16"])
    with pytest.raises(ConfigError, match=r"agent.yaml: routing.vni: differs from .*net-conf.json, which has 1"):
        read(net_conf, routing={"vni": 4096})


def test_a_wrong_or_missing_file_is_an_error(net_conf: Path) -> None:
    with pytest.raises(ConfigError, match=r"flannel.netConf: .*absent.json: No such file"):
        read(net_conf.with_name("absent.json"))
    net_conf.write_text('{"Network": "10.99.0.0/16", "Backend": {"Type": "vxlan", "GBP": true}}')
    with pytest.raises(ConfigError, match=r"net-conf.json: Backend.GBP: podwire sends no group policy"):
        read(net_conf)


def test_annotations_have_the_device_of_the_plan() -> None:
    output = FlannelOutput(FlannelSection(announce=True))
    assert output.annotations(ME, planned(vni=1)) == {
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/backend-data": f'{{"VNI":1,"VtepMAC":"{tunnel_mac(ME.name)}"}}',
        "flannel.alpha.coreos.com/public-ip": "10.89.0.11",
        "flannel.alpha.coreos.com/public-ipv6": "fd89::11",
    }
    plain = output.annotations(ME, planned(backend="hostgw"))
    assert plain["flannel.alpha.coreos.com/backend-type"] == "host-gw"
    assert plain["flannel.alpha.coreos.com/backend-data"] == "null"
    assert output.annotations(ME, planned(backend="geneve")) == {}
    assert FlannelOutput(FlannelSection()).annotations(ME, planned(vni=1)) == {}


def test_the_subnet_file_is_written_when_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "run" / "subnet.env"
    output = FlannelOutput(FlannelSection(subnet_file=str(file)))
    output.write(ME, planned(), ME.pod_cidrs, masquerade=True)
    assert "FLANNEL_MTU=1450\n" in file.read_text()
    before = file.stat().st_ino
    output.write(ME, planned(), ME.pod_cidrs, masquerade=True)
    assert file.stat().st_ino == before
    output.write(ME, planned(backend="hostgw"), ME.pod_cidrs, masquerade=True)
    assert "FLANNEL_MTU=1500\n" in file.read_text()


def test_a_subnet_file_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    output = FlannelOutput(FlannelSection(subnet_file=str(tmp_path / "file" / "subnet.env")))
    for _ in range(2):
        output.write(ME, planned(), (), masquerade=True)
    assert caplog.text.count("cannot write flannel.subnetFile") == 1


@pytest.mark.parametrize(
    ("etcd", "problem"),
    [
        ('endpoints: ["192.0.2.5:2379"]', r"flannel\.etcd\.endpoints\[0\]: .*expected an address such as https://"),
        (
            'endpoints: ["http://a:1", "https://b:1"]',
            r"flannel\.etcd\.endpoints\[1\]: expected the scheme of the first",
        ),
        ("prefix: coreos.com", r"flannel\.etcd\.prefix: 'coreos.com': expected a path"),
        ("certFile: a.crt", r"flannel\.etcd\.keyFile: is missing"),
        ("keyFile: a.key", r"flannel\.etcd\.certFile: is missing"),
        ("user: root", r"flannel\.etcd.*user"),
    ],
)
def test_a_wrong_etcd_is_refused_with_its_field(etcd: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f"nodeName: a\nflannel: {{etcd: {{{etcd}}}}}", "agent.yaml")


def test_files_of_certificates_that_do_not_load_are_named(tmp_path: Path) -> None:
    section = EtcdSection(endpoints=("https://192.0.2.5:2379",), ca_file=str(tmp_path / "none.crt"))
    with pytest.raises(ConfigError, match=r"flannel\.etcd\.caFile: certificates do not load"):
        tls_of(section)
    assert tls_of(EtcdSection(endpoints=("http://192.0.2.5:2379",))) is None

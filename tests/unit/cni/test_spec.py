"""Results in all seven versions, configuration errors."""

import json

import pytest

from podwire.cni import spec
from podwire.errors import CniError

FULL = spec.CniResult(
    interfaces=(
        spec.CniInterface(name="web-1-ab12cd", mac="02:00:00:00:00:01", mtu=1450),
        spec.CniInterface(name="eth0", mac="02:00:00:00:00:02", sandbox="/run/netns/p", mtu=1450),
    ),
    ips=(
        spec.Ip(address="10.244.1.2/32", gateway="169.254.1.1", interface=1),
        spec.Ip(address="fd00:1::2/128", gateway="fe80::1", interface=1),
    ),
    routes=(spec.CniRoute(dst="0.0.0.0/0", gw="169.254.1.1", mtu=1450), spec.CniRoute(dst="::/0", gw="fe80::1")),
    dns=spec.Dns(nameservers=("10.96.0.10",), search=("cluster.local",)),
)


@pytest.mark.parametrize("version", spec.VERSIONS)
def test_fields_of_a_version_survive_a_round_trip(version: str) -> None:
    document = json.loads(spec.render_result(FULL, version))
    again = spec.parse_result(document)
    assert document["cniVersion"] == version
    assert [ip.address for ip in again.ips] == [ip.address for ip in FULL.ips]
    assert [ip.gateway for ip in again.ips] == ["169.254.1.1", "fe80::1"]
    assert [(r.dst, r.gw) for r in again.routes] == [(r.dst, r.gw) for r in FULL.routes]
    assert again.dns == FULL.dns
    if spec.at_least(version, "0.3.0"):
        assert [(i.name, i.mac, i.sandbox) for i in again.interfaces] == [
            (i.name, i.mac, i.sandbox) for i in FULL.interfaces
        ]
        assert again.ips[0].interface == 1
    if version == "1.1.0":
        assert again == FULL
    assert json.loads(spec.render_result(again, version)) == document


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.2.0", {"cniVersion", "ip4", "ip6", "dns"}),
        ("0.4.0", {"cniVersion", "interfaces", "ips", "routes", "dns"}),
        ("1.1.0", {"cniVersion", "interfaces", "ips", "routes", "dns"}),
    ],
)
def test_shape(version: str, expected: set[str]) -> None:
    assert set(json.loads(spec.render_result(FULL, version))) == expected


@pytest.mark.parametrize("version", spec.VERSIONS[2:])
def test_only_the_old_shapes_name_the_address_family(version: str) -> None:
    ips = json.loads(spec.render_result(FULL, version))["ips"]
    old = version in ("0.3.0", "0.3.1", "0.4.0")
    assert [ip.get("version") for ip in ips] == (["4", "6"] if old else [None, None])


def test_only_the_newest_version_has_mtu() -> None:
    assert "mtu" not in spec.render_result(FULL, "1.0.0").decode()
    assert json.loads(spec.render_result(FULL, "1.1.0"))["interfaces"][0]["mtu"] == 1450


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{", 6),
        (b"[]", 6),
        (b'{"name": 5}', 6),
        (b'{"cniVersion": "9.0.0", "name": "x"}', 1),
    ],
)
def test_a_bad_configuration_has_its_code(text: bytes, code: int) -> None:
    with pytest.raises(CniError) as failure:
        spec.parse_config(spec.decode_config(text))
    assert failure.value.code == code


def test_a_configuration_without_version_means_the_oldest() -> None:
    for document in ({"name": "x", "whatever": {}}, {"cniVersion": ""}, {"cniVersion": None}, {}):
        assert spec.parse_config(document).cni_version == "0.1.0"
    assert spec.decode_config(b"null") == {}


@pytest.mark.parametrize("word", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_both_spellings_of_the_attachments_to_keep(word: str) -> None:
    conf = spec.parse_config({"cniVersion": "1.1.0", word: [{"containerID": "a", "ifname": "eth0"}]})
    assert conf.attachments_in_use == frozenset({("a", "eth0")})
    assert spec.NetConf().attachments_in_use is None


def test_error() -> None:
    text = spec.render_error(CniError(7, "no name", "details"), "1.0.0")
    assert json.loads(text) == {"cniVersion": "1.0.0", "code": 7, "msg": "no name", "details": "details"}


def test_a_result_of_the_wrong_shape_is_refused() -> None:
    for document in ({"cniVersion": "0.2.0", "ip4": {}}, {"cniVersion": "1.0.0", "ips": 3}, {"cniVersion": "7"}):
        with pytest.raises(CniError):
            spec.parse_result(document)

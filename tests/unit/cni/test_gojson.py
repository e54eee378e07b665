"""Documents of programs in Go: names in any case, null as an absent value."""

import msgspec
import pytest

from podwire.cni import gojson, spec

CONTAINERD = b"""{"cniVersion":"1.0.0","name":"podwire","prevResult":null,"disableCheck":null,"dns":null,"ipam":null,
"args":{"cni":null},"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null,"ips":null,"mac":null,"dns":null,
"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":null}]}}"""
"""What containerd writes, with null for each value that a program in Go may leave nil."""


def test_containerd_writes_null_and_capital_names() -> None:
    conf = gojson.decode(CONTAINERD, spec.NetConf)
    (mapping,) = conf.runtime_config.port_mappings
    assert mapping == spec.PortMapping(host_port=8080, container_port=80)
    assert msgspec.structs.replace(conf.runtime_config, port_mappings=()) == spec.RuntimeConfig()
    assert conf == spec.NetConf(cni_version="1.0.0", name="podwire", runtime_config=conf.runtime_config)


def test_null_is_absent_at_every_field() -> None:
    names = [field.encode_name for field in msgspec.structs.fields(spec.NetConf)]
    for kind, wrap in ((spec.NetConf, "{%s}"), (spec.RuntimeConfig, '{"runtimeConfig":{%s}}')):
        for field in msgspec.structs.fields(kind):
            text = wrap % f'"{field.encode_name}":null'
            assert gojson.decode(text.encode(), spec.NetConf) == spec.NetConf()
    assert "runtimeConfig" in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"hostport": 1, "CONTAINERPORT": 2, "hostip": "::1"}', (1, 2, "tcp", "::1")),
        ('{"HostPort": 1, "hostPort": 3, "containerPort": 2}', (3, 2, "tcp", "")),
        ('{"hostPort": 3, "HostPort": 1, "containerPort": 2}', (1, 2, "tcp", "")),
        ('{"hostPort": 1, "containerPort": 2, "HOSTPORT": null, "other": {"x": [1]}}', (1, 2, "tcp", "")),
    ],
)
def test_names_match_in_any_case_and_the_last_counts(text: str, expected: tuple[int, int, str, str]) -> None:
    mapping = gojson.decode(text.encode(), spec.PortMapping)
    assert (mapping.host_port, mapping.container_port, mapping.protocol, mapping.host_ip) == expected


def test_names_of_dictionaries_keep_their_case() -> None:
    text = b'{"io.kubernetes.cri.pod-annotations": {"A": "1", "a": null}}'
    assert gojson.decode(text, spec.RuntimeConfig).annotations == {"A": "1", "a": ""}


def test_null_in_a_list_is_an_empty_element() -> None:
    assert gojson.decode(b'{"nameservers": ["10.0.0.1", null]}', spec.Dns).nameservers == ("10.0.0.1", "")
    document: dict[str, list[object]] = {
        "Interfaces": [None, {"Name": "eth0", "Sandbox": "/x"}],
        "IPs": [{"Address": "10.0.0.1/24"}],
    }
    with pytest.raises(msgspec.ValidationError):
        gojson.convert(document, spec.CniResult)
    del document["Interfaces"][0]
    result = gojson.convert(document, spec.CniResult)
    assert (result.interfaces[0].sandbox, result.ips[0].address) == ("/x", "10.0.0.1/24")


@pytest.mark.parametrize("text", ["[]", "3", '{"name": 5}', '{"dns": []}', '{"runtimeConfig": {"mac": 1}}'])
def test_a_wrong_type_is_an_error(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        gojson.decode(text.encode(), spec.NetConf)


def test_previous_results_of_both_shapes_may_have_null() -> None:
    newer = {"cniVersion": "1.0.0", "interfaces": None, "ips": [{"address": "10.0.0.1/24", "interface": None}]}
    older = {"cniVersion": "0.2.0", "IP4": {"IP": "10.0.0.1/24", "routes": None}, "ip6": None, "dns": None}
    for document in (newer, older):
        assert spec.parse_result(document).ips == (spec.Ip(address="10.0.0.1/24"),)

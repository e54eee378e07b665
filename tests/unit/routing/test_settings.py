"""The section ``routing``: shared settings, and the options of each backend under their keys."""

import pytest

from podwire.errors import ConfigError
from podwire.routing.backends.vxlan.backend import VxlanOptions
from podwire.routing.settings import RoutingSettings, parse_settings


def test_flat_keys_of_vxlan_are_options_of_vxlan() -> None:
    settings = parse_settings({"backend": "hostgw", "vni": 7, "port": 4789}, "file")
    assert settings.options["vxlan"] == VxlanOptions(vni=7, port=4789)
    assert settings.udp_ports() == (4789,)


def test_defaults_are_those_of_an_empty_section() -> None:
    assert parse_settings({}, "file").fields() == {
        "backend": "vxlan",
        "directRouting": False,
        "mtu": 0,
        "masquerade": True,
        "vni": 4096,
        "port": 8472,
    }
    assert RoutingSettings().load()["vxlan"].udp_ports == (8472,)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"backend": "ipip"}, "file: routing.backend: 'ipip' is not a routing backend; there are hostgw, vxlan"),
        ({"mtu": 100}, "file: routing.mtu: 100 is not in 1280..65535"),
        ({"vni": 0}, "file: routing.vni: 0 is not in 1..16777215"),
        ({"port": 70000}, "file: routing.port: 70000 is not in 1..65535"),
        ({"port": "many"}, "file: routing.port: expected `int`, got `str`"),
        (
            {"wireguard.port": 1},
            "file: routing: unknown field `wireguard`; there are backend, directRouting, mtu, masquerade, vni, port",
        ),
    ],
)
def test_wrong_settings_are_refused_with_their_field(document: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_settings(document, "file")
    assert str(refused.value) == problem

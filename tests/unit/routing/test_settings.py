"""The section ``routing``: shared settings, and the options of each backend under their keys."""

import pytest

from podwire.errors import ConfigError
from podwire.routing.backends.vxlan.backend import VxlanOptions
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings, parse_settings


def test_flat_keys_of_vxlan_are_options_of_vxlan() -> None:
    settings = parse_settings({"backend": "hostgw", "vni": 7, "port": 4789}, "file")
    assert settings.options["vxlan"] == VxlanOptions(vni=7, port=4789)
    assert 4789 in settings.udp_ports() and 8472 not in settings.udp_ports()


def test_defaults_are_those_of_an_empty_section() -> None:
    shared = {
        "backend": "vxlan",
        "directRouting": False,
        "mtu": 0,
        "masquerade": True,
        "masqueradeRules": "nftables",
        "nonMasqueradeCIDRs": (),
        "selfTest": True,
        "txChecksum": "auto",
        "vni": 4096,
        "port": 8472,
    }
    fields = parse_settings({}, "file").fields()
    assert {key: fields[key] for key in shared} == shared
    assert fields.keys() - shared.keys() <= set(BACKENDS), "a backend's options stand in its own section"
    assert RoutingSettings().load()["vxlan"].udp_ports == (8472,)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            {"backend": "carrier-pigeon"},
            f"file: routing.backend: 'carrier-pigeon' is not a routing backend; expected one of {', '.join(BACKENDS)}",
        ),
        ({"mtu": 100}, "file: routing.mtu: 100 is not in 1280..65535"),
        ({"vni": 0}, "file: routing.vni: 0 is not in 1..16777215"),
        (
            {"nonMasqueradeCIDRs": ["10.0.0.0/8", "10.0.0.1/8"]},
            "file: routing.nonMasqueradeCIDRs[1]: 10.0.0.1/8 has host bits set",
        ),
        (
            {"masqueradeRules": "ipfw"},
            "file: routing.masqueradeRules: 'ipfw' is not valid; expected one of iptables, nftables",
        ),
        ({"port": 70000}, "file: routing.port: 70000 is not in 1..65535"),
        ({"port": "many"}, "file: routing.port: expected a whole number, got a text"),
        (
            {"pigeon.port": 1},
            "file: routing: unknown field `pigeon`; expected one of "
            + ", ".join(RoutingSettings(options=parse_settings({}, "file").options).fields()),
        ),
    ],
)
def test_wrong_settings_are_refused_with_their_field(document: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_settings(document, "file")
    assert str(refused.value) == problem

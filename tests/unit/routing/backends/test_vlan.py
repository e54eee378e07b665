"""What is special about the backend vlan: the port of the segment tags its frames."""

import pytest
from tests.unit.routing.backends.test_bridge import ME

from podwire.errors import ConfigError
from podwire.routing.backends.vlan.backend import VlanOptions, VlanSection, VlanSegment
from podwire.routing.nodes import ClusterView
from podwire.routing.segment import segment_mac
from podwire.routing.settings import parse_settings

PLAN = """\
link podwire-vlan mtu 1400 address MAC alias "podwire/routing vlan" up type bridge
link podwire-vlan-up mtu 1400 address MAC master podwire-vlan locked alias "podwire/routing vlan" up \
type vlan link eth2 id 7
address 10.244.0.1/32 dev podwire-vlan
address fd44::1/128 dev podwire-vlan
sysctl net/ipv4/conf/podwire-vlan/rp_filter = 2
sysctl net/ipv6/conf/podwire-vlan/accept_ra = 0
"""


def test_the_port_is_in_the_configured_vlan_of_the_uplink() -> None:
    settings = parse_settings({"backend": "vlan", "vlan": {"id": 7, "uplink": "eth2"}}, "test")
    options = VlanOptions(vlan=VlanSection(id=7, uplink="eth2"))
    assert settings.options["vlan"] == options
    backend = VlanSegment(options)
    created = backend.plan(ME, [], ClusterView())
    assert str(created.network) == PLAN.replace("MAC", segment_mac("node-1", ME.addresses))
    assert backend.announce(ME) == {"vlan": {"mac": segment_mac("node-1", ME.addresses)}}
    assert backend.overhead(ME) == 100


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"vlan.id": 0}, r"routing\.vlan\.id: 0 is not in 1\.\.4094"),
        ({"vlan.id": 4095}, r"routing\.vlan\.id: 4095 is not in"),
        ({"vlan.uplink": "a b"}, r"routing\.vlan\.uplink: 'a b' is not a device name"),
        ({"vlan.id": "seven"}, r"routing\.vlan\.id"),
    ],
)
def test_a_vlan_that_cannot_be_is_refused(section: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_settings(section, "test")

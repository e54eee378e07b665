"""Which routing backends ``podwire up`` refuses on this machine."""

import pytest

from podwire.errors import ConfigError
from podwire.local.backendcheck import check_backend
from podwire.local.config import ClusterConfig, RoutingSection


def config(backend: str, network: str = "podwire") -> ClusterConfig:
    return ClusterConfig(routing=RoutingSection(backend=backend), network=network)  # type: ignore[arg-type]


def lacks(feature: str) -> str:
    return f"the kernel has no {feature}" if feature in ("ipip", "geneve") else ""


@pytest.mark.parametrize("known", [None, config("vxlan")], ids=["new", "running"])
def test_a_backend_that_the_machine_lacks_is_refused(known: ClusterConfig | None) -> None:
    with pytest.raises(ConfigError) as caught:
        check_backend(config("ipip"), known, "c.yaml", lacks)
    assert str(caught.value) == (
        "c.yaml: routing.backend: ipip: the kernel has no ipip; this machine can run "
        "bgp, bridge, cloudroutes, hostgw, ipvlan, macvlan, none, ovs, udp, vlan, vxlan, wireguard"
    )


@pytest.mark.parametrize(
    ("wanted", "known"),
    [
        (config("vxlan"), None),
        (config("hostgw"), config("vxlan")),
        (config("ipip"), config("ipip")),
        (config("ipip", "none"), None),
    ],
    ids=["usable", "changed", "kept", "without a network"],
)
def test_every_other_backend_is_accepted(wanted: ClusterConfig, known: ClusterConfig | None) -> None:
    asked: list[str] = []

    def lacks_nothing_else(feature: str) -> str:
        asked.append(feature)
        return lacks(feature)

    check_backend(wanted, known, "c.yaml", lacks_nothing_else)
    assert asked == ([] if wanted.routing.backend != "vxlan" else ["vxlan"])

"""When the pods of a node may have second interfaces."""

import pytest

from podwire.agent.routes import leg_obstacle


@pytest.mark.parametrize(
    ("parts", "mode", "obstacle"),
    [
        (("cni", "routing", "proxy"), "nftables", ""),
        (("cni", "routing"), "ipvs", ""),
        (("cni", "routing", "proxy"), "ipvs", "connections that ipvs translates"),
        (("cni", "routing", "proxy", "policy"), "nftables", "NetworkPolicies are in force"),
    ],
)
def test_second_interfaces_need_a_node_that_sees_enough(parts: tuple[str, ...], mode: str, obstacle: str) -> None:
    result = leg_obstacle(parts, mode)
    assert result.startswith(obstacle) and bool(result) == bool(obstacle)

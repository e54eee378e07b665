"""The limits of neighbour tables, by the number of peers on the node's own subnet."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from podwire.routing.neighbours import FEW, LIMITS, limits_of, neighbour_limits
from podwire.routing.nodes import LocalNode, Underlay
from podwire.state.route import Sysctl


def me(limits: dict[int, tuple[int, int]]) -> LocalNode:
    own = (ip_interface("10.89.0.11/16"), ip_interface("fd89::11/64"))
    return LocalNode(
        name="node-1",
        addresses=(ip_address("10.89.0.11"),),
        pod_cidrs=(ip_network("10.244.0.0/24"),),
        underlay=Underlay("eth0", 1500, own, neighbour_limits=limits),
    )


@pytest.mark.parametrize(
    ("present", "count", "expected"),
    [
        ((512, 1024), FEW, {}),
        ((64, 128), 300, {"2": "728", "3": "1456"}),
        ((512, 1024), 65, {"2": "512", "3": "1024"}),
        ((4096, 8192), 300, {"2": "4096", "3": "8192"}),
    ],
)
def test_limits_are_raised_and_never_lowered(present: tuple[int, int], count: int, expected: dict[str, str]) -> None:
    result = neighbour_limits(me({4: present}), count).sysctls
    assert {sysctl.path.removeprefix("net/ipv4/neigh/default/gc_thresh"): sysctl.value for sysctl in result} == expected


def test_limits_that_are_not_shown_are_left_alone() -> None:
    assert neighbour_limits(me({}), 300).sysctls == ()


def test_limits_are_read_by_family() -> None:
    values = [Sysctl(path, str(number)) for number, path in enumerate(LIMITS)]
    assert limits_of(values) == {4: (0, 1), 6: (2, 3)}
    assert limits_of(values[:2]) == {4: (0, 1)} and limits_of(()) == {}

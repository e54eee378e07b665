"""The ports of a node that pods take."""

from typing import Any

import msgspec
import pytest

from podwire.model.hostports import HostPort, host_ports, overlap
from podwire.model.pod import Pod

EVERYWHERE: HostPort = ("0.0.0.0", "TCP", 80)  # noqa: S104
HERE: HostPort = ("192.0.2.1", "TCP", 80)


def ports(**spec: Any) -> tuple[HostPort, ...]:
    return host_ports(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod))


def test_ports_of_containers_and_sidecars_count() -> None:
    main = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}
    sidecar = {"name": "s", "restartPolicy": "Always",
               "ports": [{"containerPort": 9, "hostPort": 9, "hostIP": "192.0.2.1", "protocol": "UDP"}]}  # fmt: skip
    init = {"name": "i", "ports": [{"containerPort": 7, "hostPort": 7}]}
    result = ports(containers=[main], initContainers=[init, sidecar])
    assert result == (("192.0.2.1", "UDP", 9), ("0.0.0.0", "TCP", 8080))  # noqa: S104
    assert ports(containers=[{"name": "c", "ports": [{"containerPort": 80}]}], hostNetwork=True) == (EVERYWHERE,)


@pytest.mark.parametrize(
    ("expected", "host_port", "conflict"),
    [
        (HERE, HERE, True),
        (HERE, EVERYWHERE, True),
        (EVERYWHERE, HERE, True),
        (HERE, ("192.0.2.2", "TCP", 80), False),
        (HERE, ("192.0.2.1", "UDP", 80), False),
        (EVERYWHERE, ("192.0.2.1", "TCP", 81), False),
    ],
)
def test_ports_overlap_at_one_address(expected: HostPort, host_port: HostPort, conflict: bool) -> None:
    assert overlap((expected,), (host_port,)) is conflict

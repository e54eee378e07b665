"""Fixtures that several files use."""

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests import longest_first
from tests.kernel import warm_processes
from tests.kernel.agent_cluster import Machine
from tests.kernel.cni_node import NodeAgent

from podwire.errors import Unsupported
from podwire.kernel import bpf_state
from podwire.runtime.clock import Clock

_LONGEST = (
    "test_image.py",
    "test_proxy_scenarios.py",
    "test_routing_loss.py",
    "test_migrate_steps.py",
    "test_healing_matrix.py",
    "test_routing_nodes.py",
    "test_routing_ovs.py",
    "test_policy_replacement.py",
    "test_proxy_following.py",
    "test_policy_random.py",
    "test_policy_packets.py",
    "test_policy_only.py",
    "test_policy_corners.py",
    "test_proxy_takeover.py",
    "test_policy_iptables.py",
    "test_stale_flows.py",
    "test_cni_kill.py",
    "test_policy_why.py",
    "test_routing_wireguard.py",
    "test_proxy_iptables.py",
    "test_ipset.py",
)
LINKS = ("routed", "bridge")
_FOR_EACH_LINK = (
    "test_cni_pods",
    "test_cni_ports",
    "test_cni_chains",
    "test_cni_interfaces",
    "test_cni_healing",
    "test_cni_healing_matrix",
    "test_cni_requests",
)
"""The files whose tests of nodes run with each way to connect pods."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first.sort(items, Path(__file__).parent, _LONGEST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests themselves, and all that they import, are not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    if session.config.getoption("forks", 0) > 1:
        warm_processes.begin()


def pytest_sessionstart() -> None:
    """Programs in the kernel need their file system, which not every machine has mounted at its start."""
    with suppress(Unsupported):
        bpf_state.mount_file_system()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pod_link" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in _FOR_EACH_LINK:
        metafunc.parametrize("pod_link", LINKS, indirect=True)


@pytest.fixture
def pod_link(request: pytest.FixtureRequest) -> str:
    """How pods are connected to their node."""
    return str(getattr(request, "param", LINKS[0]))


@pytest.fixture
def make(tmp_path: Path, pod_link: str) -> Iterator[Callable[..., NodeAgent]]:
    """Makes nodes, which are removed after the test."""
    node_agents: list[NodeAgent] = []

    def build(*cidrs: str, clock: Clock | None = None) -> NodeAgent:
        node_agents.append(NodeAgent(tmp_path, cidrs or ("10.244.1.0/24",), pod_link, clock))
        return node_agents[-1]

    yield build
    for node in node_agents:
        node.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A cluster of agents, which is removed after the test; a failed test shows the ends of their logs."""
    cluster = Machine(tmp_path)
    try:
        yield cluster
    finally:
        cluster.close()
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text()[-3000:])

"""Fixtures that several files use."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import longest_first
from tests.kernel.agent_cluster import Machine
from tests.kernel.cni_node import NodeAgent

_LONGEST = (
    "test_image.py",
    "test_proxy_scenarios.py",
    "test_proxy_following.py",
    "test_stale_flows.py",
    "test_policy_iptables.py",
    "test_cni_kill.py",
    "test_proxy_takeover.py",
    "test_routing_nodes.py",
    "test_policy_why.py",
    "test_ipset.py",
    "test_policy_packets.py",
    "test_proxy_iptables.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first.sort(items, Path(__file__).parent, _LONGEST)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., NodeAgent]]:
    """Makes nodes, which are removed after the test."""
    node_agents: list[NodeAgent] = []

    def build(*cidrs: str) -> NodeAgent:
        node_agents.append(NodeAgent(tmp_path, cidrs or ("10.244.1.0/24",)))
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

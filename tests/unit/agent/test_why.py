"""Nodes as ``podwire why`` knows them from the configuration of their agents."""

import msgspec
import pytest

from podwire.agent.config import AgentConfig
from podwire.agent.why import node_access, remote_nodes, this_node
from podwire.errors import ClusterError
from podwire.model.node import Node

CONFIG = AgentConfig(node_name="a", cluster_cidrs=("10.244.0.0/16",), service_cidrs=("10.96.0.0/16",))


def test_settings_of_the_cluster_win_over_the_file() -> None:
    access = node_access(CONFIG, {"proxy.mode": "iptables", "policy.ownNodeEgress": "false"})
    assert (access.service_mode, access.policies.own_node_egress, access.problem) == ("iptables", False, "")
    assert access.services.pod_cidrs == ("10.244.0.0/16",)


def test_wrong_cluster_settings_are_a_problem_of_each_node() -> None:
    access = node_access(CONFIG, {"proxy.mode": "magic"})
    assert access.service_mode == "nftables"
    assert "the agents keep the last good settings" in access.problem


def test_only_this_node_can_be_read() -> None:
    access = this_node(CONFIG, {})
    assert access("a").readable
    with pytest.raises(ClusterError, match="node b decides, and this is a"):
        access("b")


def test_nodes_elsewhere_are_planned_by_their_pod_ranges() -> None:
    node = msgspec.convert({"metadata": {"name": "b"}, "spec": {"podCIDRs": ["10.1.0.0/24"]}}, Node)
    access = remote_nodes((node,), ("10.96.0.0/16",), {})("b")
    assert (access.readable, access.cluster_cidrs) == (False, ("10.1.0.0/24",))

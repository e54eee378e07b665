"""Which nodes connections are tried from, and addresses of the command line."""

import asyncio
from typing import cast

import pytest
from tests.fakes.upgrade_cluster import UpgradeCluster

from podwire.errors import ClusterError, ConfigError
from podwire.kube.client import Client
from podwire.upgrade.nodecommands import nodes_ready
from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.verify.run import VerifyOptions, address_of, try_from
from podwire.upgrade.verify.stage import VerifyStage


def tried(cluster: UpgradeCluster, *nodes: str) -> dict[str, str]:
    client = cast("Client", cluster)
    stage = VerifyStage(client, "kube-system", ProbeImage(image="podwire:1"))

    async def run() -> dict[str, str]:
        options = VerifyOptions(nodes=nodes, kinds=("pod", "service"))
        return {entry.node: entry.problem for entry in await try_from(stage, await nodes_ready(client), options)}

    return asyncio.run(run())


def cluster_of(*ready: str) -> UpgradeCluster:
    cluster = UpgradeCluster("a", "b", "c")
    for name in {"a", "b", "c"} - {*ready}:
        cluster.objects["Node", "", name]["status"]["conditions"][0]["status"] = "False"
    return cluster


def test_a_node_that_is_not_ready_gets_no_pods() -> None:
    cluster = cluster_of("a", "c")
    assert tried(cluster) == {"a": "", "b": "is not Ready", "c": ""}
    assert {node for node, _ in cluster.steps} == {"a", "c"}
    assert not any(name.endswith("-b") for kind, _, name in cluster.objects if kind == "Pod")
    assert tried(cluster_of("a", "c"), "b") == {"b": "is not Ready"}


def test_without_a_ready_node_nothing_can_be_tried() -> None:
    with pytest.raises(ClusterError, match="no node is Ready"):
        tried(cluster_of())


def test_addresses_outside_are_checked() -> None:
    assert address_of("[2001:db8::1]:443", "--egress") == ("2001:db8::1", 443)
    for text in ("192.0.2.7", "192.0.2.7:", ":443", "192.0.2.7:0", "192.0.2.7:65536", "192.0.2.7:1234567", "a:\u0665"):
        with pytest.raises(ConfigError, match="--egress: expected ADDRESS:PORT"):
            address_of(text, "--egress")

"""Objects behind the API's validation: no IPPool, IPAMBlock or Node ends the addresses of the other ones."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, POD, hostile

from podwire.cluster.blocks import Block, PoolReader, block_name, read_block
from podwire.cluster.ipamreport import ClusterAddresses, report
from podwire.cni.ipam.blocks.plan import (
    AskOwner,
    BlockSituation,
    CancelRequest,
    ConfirmBlock,
    LendAddresses,
    RangeUsage,
    ReturnAddresses,
    TakeOverBlock,
    decide,
)
from podwire.cni.ipam.blocks.writing import block_of, changes
from podwire.controllers.ipamblocks.plan import plan, users
from podwire.errors import ConfigError
from podwire.kube.decode import decode_object
from podwire.model.bgp import IpPoolObject
from podwire.model.ipam import IpamBlock
from podwire.model.node import Node
from podwire.model.pod import Pod

Json = dict[str, Any]
RANGE = "10.0.1.0/26"
POOL: Json = {
    "metadata": {"name": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "cidr": "10.0.0.0/16",
        "blockSize": 26,
        "disabled": False,
        "nodeSelector": "topology.kubernetes.io/zone == 'z1'",
        "namespaceSelector": "all()",
        "allowedUses": ["Workload"],
        "assignmentMode": "Automatic",
    },
}
BLOCK: Json = {
    "metadata": {"name": block_name(ip_network(RANGE)), "uid": "b1", "resourceVersion": "7"},
    "spec": {
        "cidr": RANGE,
        "pool": "default",
        "node": "n1",
        "confirmed": True,
        "lent": {"10.0.1.7": "n2"},
        "requests": {"n2": 2},
    },
}
BLOCK_NODE = NODE | {"metadata": NODE["metadata"] | {"annotations": {"podwire.io/pod-blocks": f"{RANGE},10.0.9.7/32"}}}
KINDS: dict[str, tuple[Json, type[Any]]] = {
    "pool": (POOL, IpPoolObject),
    "block": (BLOCK, IpamBlock),
    "node": (BLOCK_NODE, Node),
    "pod": (POD, Pod),
}


@pytest.mark.parametrize("changed", KINDS)
def test_blocks_are_planned_whatever_one_object_has(changed: str) -> None:
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    for label, item in hostile(*KINDS[changed]):
        try:
            _plan(**(objects | {changed: item}))
        except Exception as failure:
            raise AssertionError(label) from failure


def _plan(pool: IpPoolObject, block: IpamBlock, node: Node, pod: Pod) -> None:
    pools = PoolReader().read((pool,))
    blocks: tuple[Block, ...] = ()
    try:
        blocks = (read_block(block),)
    except ConfigError:
        pass
    for name in ("n1", "n2"):
        decision = decide(
            BlockSituation(
                node=name,
                labels=node.metadata.labels,
                pools=pools,
                blocks=blocks,
                usage=lambda network: RangeUsage(min(network.num_addresses, 61), held=1),
                peer_ranges=node.pod_networks,
                announced=node.pod_networks,
                former=node.spec.networks,
                waiting=True,
            )
        )
        action = decision.action
        if action is not None:
            assert block_of(action)
        if isinstance(
            action, TakeOverBlock | ConfirmBlock | AskOwner | CancelRequest | LendAddresses | ReturnAddresses
        ):
            changes(action, name, tuple(blocks[0].lent) if blocks else ())
    users(blocks)
    tuple(plan(blocks, ("n2",)))
    report(ClusterAddresses(pools=pools, blocks=blocks, nodes=(node,), pods=(pod,), agents={}))

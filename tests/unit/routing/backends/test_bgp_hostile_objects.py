"""Objects of ``projectcalico.org/v3`` behind the API's validation: none ends the routes of a node."""

import subprocess
from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, hostile

from podwire.errors import ConfigError
from podwire.kube.decode import decode_object
from podwire.model.bgp import BgpConfigurationObject, BgpFilterObject, BgpPeerObject, IpPoolObject
from podwire.model.node import Node
from podwire.routing.backends.bgp.backend import BgpRouting
from podwire.routing.backends.bgp.filters import read_filter
from podwire.routing.backends.bgp.objects import (
    BgpObjects,
    ConfigurationValues,
    Surroundings,
    read_configuration,
    read_peer,
    read_pool,
)
from podwire.routing.backends.bgp.options import BgpOptions
from podwire.routing.nodes import ClusterView, LocalNode, Underlay, peer_of

T = TypeVar("T")
Json = dict[str, Any]
BIRD = "/usr/sbin/bird"
PASSWORD = {"secretKeyRef": {"name": "bgp", "key": "rack", "optional": False}}
RULE: Json = {
    "action": "Accept",
    "cidr": "10.0.0.0/8",
    "matchOperator": "In",
    "prefixLength": {"min": 16, "max": 24},
    "communities": {"values": ["64512:7"]},
    "asPathPrefix": [64600],
    "operations": [{"addCommunity": {"value": "64512:8"}}],
}
BGP_NODE = NODE | {
    "metadata": NODE["metadata"]
    | {
        "labels": {"rr": "yes", "route-reflector": ""},
        "annotations": {
            "podwire.io/routing-facts": '{"backend":"bgp","receives":["bgp"],"bgp":{"asNumber":64512}}',
            "projectcalico.org/ASNumber": "64513",
            "projectcalico.org/RouteReflectorClusterID": "244.0.0.1",
        },
    }
}
KINDS: dict[str, tuple[Json, type[Any]]] = {
    "configuration": (
        {
            "metadata": {"name": "default"},
            "spec": {
                "asNumber": 64512,
                "nodeToNodeMeshEnabled": True,
                "listenPort": 179,
                "bindMode": "NodeIP",
                "logSeverityScreen": "Info",
                "nodeMeshPassword": PASSWORD,
                "nodeMeshMaxRestartTime": "2m",
                "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}],
                "communities": [{"name": "blue", "value": "64512:7"}],
                "prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["blue", "64512:1:7"]}],
                "ignoredInterfaces": ["eth9"],
            },
        },
        BgpConfigurationObject,
    ),
    "peer": (
        {
            "metadata": {"name": "rack"},
            "spec": {
                "nodeSelector": "all()",
                "peerIP": "192.168.99.254:179",
                "asNumber": 64600,
                "localASNumber": 64512,
                "password": PASSWORD,
                "nextHopMode": "Self",
                "maxRestartTime": "1m",
                "keepaliveTime": "30s",
                "numAllowedLocalASNumbers": 1,
                "ttlSecurity": 1,
                "reachableBy": "192.168.99.253",
                "filters": ["filter"],
            },
        },
        BgpPeerObject,
    ),
    "filter": (
        {
            "metadata": {"name": "filter"},
            "spec": {
                "importV4": [RULE],
                "exportV6": [{"action": "Reject", "cidr": "fd00::/16", "matchOperator": "In"}],
            },
        },
        BgpFilterObject,
    ),
    "pool": ({"metadata": {"name": "pool"}, "spec": {"cidr": "10.0.0.0/16", "disableBGPExport": True}}, IpPoolObject),
    "node": (BGP_NODE, Node),
}
ME = LocalNode(
    name="n0",
    addresses=(ip_address("192.168.99.9"),),
    pod_cidrs=(ip_network("10.0.9.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("192.168.99.9/24"),)),
    run_dir="/run/test",
)


@pytest.mark.skipif(not Path(BIRD).exists(), reason=f"needs {BIRD} (Debian: bird2)")
@pytest.mark.parametrize("changed", KINDS)
def test_bird_accepts_what_follows_from_any_object(changed: str, tmp_path: Path) -> None:
    """BIRD reads every configuration that differs: it would refuse the routes to all nodes with the wrong line."""
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    file, checked = tmp_path / "bird.conf", set[str]()
    assert "neighbor 192.168.99.254" in _configuration(objects)
    for label, item in hostile(*KINDS[changed]):
        try:
            text = _configuration(objects | {changed: item})
        except Exception as failure:
            raise AssertionError(label) from failure
        if text not in checked:
            checked.add(text)
            file.write_text(text)
            done = subprocess.run((BIRD, "-p", "-c", file), capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{label}: {done.stderr}"


def _configuration(objects: Json) -> str:
    """BIRD's configuration on a node; an object that is refused has no effect, as without a last good form."""
    peer = peer_of(objects["node"])
    around = Surroundings(
        secrets=lambda _name, _key: "s3cret",
        node_addresses=frozenset(peer.addresses),
        pod_cidrs=tuple(peer.pod_cidrs),
    )
    filters = dict(zip(("filter",), _valid(lambda: read_filter(objects["filter"])), strict=False))
    around = msgspec.structs.replace(around, filters=filters)
    configurations = _valid(lambda: read_configuration(objects["configuration"], around))
    peers = _valid(lambda: read_peer(objects["peer"], around))
    pools = _valid(lambda: read_pool(objects["pool"], around))
    default = configurations[0] if configurations else ConfigurationValues()
    routing = BgpRouting(BgpOptions())
    routing.take_objects(BgpObjects(default=default, peers=peers, pools=pools))
    view = ClusterView((peer,), (ip_network("10.0.0.0/16"),))
    (bird,) = routing.plan(ME, (peer,), view).children
    return bird.files["/run/test/bird.conf"].decode()


def _valid(read: Callable[[], T]) -> tuple[T, ...]:
    """The values of an object; none when it is refused."""
    try:
        return (read(),)
    except ConfigError:
        return ()

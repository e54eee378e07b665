"""Objects behind the API's validation: no Service, Node, pool or advertisement ends the addresses of the others."""

import subprocess
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, SERVICE, SLICE, hostile

from podwire.bgp.birdconf import render
from podwire.bgp.configuration import BgpConfiguration
from podwire.controllers.loadbalancer.plan import decide, metadata_patch, rebuild, shown_addresses, status_patch
from podwire.kube.decode import decode_object
from podwire.loadbalancer.advertisements import read_l2_scopes
from podwire.loadbalancer.allocation import Allocator
from podwire.loadbalancer.bgppeers import (
    PasswordSecrets,
    Vocabulary,
    read_advertisement,
    read_communities,
    read_each,
    read_peer,
    read_profile,
)
from podwire.loadbalancer.bgproutes import BgpFacts, plan_routes
from podwire.loadbalancer.election import Elector, L2Facts, addresses_of, serving
from podwire.loadbalancer.guard import guard_table
from podwire.loadbalancer.pools import read_pools
from podwire.loadbalancer.protection import read_protections
from podwire.loadbalancer.servicestatus import advertised
from podwire.model.meta import ObjectMeta
from podwire.model.metallb import (
    BfdProfile,
    BgpAdvertisement,
    IpAddressPool,
    L2Advertisement,
    MetalLbCommunity,
    MetalLbPeer,
)
from podwire.model.node import Node
from podwire.model.secret import PASSWORD_TYPE, Secret
from podwire.model.service import EndpointSlice, Service

Json = dict[str, Any]
META = {
    "name": "main",
    "namespace": "metallb-system",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"a": "b"},
}
SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
BALANCED = SERVICE | {
    "metadata": SERVICE["metadata"]
    | {
        "annotations": {
            "metallb.io/ip-allocated-from-pool": "main",
            "metallb.io/loadBalancerIPs": "198.51.100.9",
            "metallb.io/address-pool": "main",
            "metallb.io/allow-shared-ip": "web",
            "podwire.io/max-connections-per-source": "10",
            "podwire.io/new-connections-per-source": "20/second",
            "podwire.io/new-connections-burst": "30",
            "podwire.io/syn-proxy": "true",
        }
    }
}
POOL: Json = {
    "metadata": META,
    "spec": {
        "addresses": ["198.51.100.0/24", "2001:db8:1::1-2001:db8:1::9"],
        "autoAssign": True,
        "avoidBuggyIPs": True,
        "serviceAllocation": {
            "priority": 1,
            "namespaces": ["default"],
            "namespaceSelectors": [SELECTOR],
            "serviceSelectors": [SELECTOR],
        },
    },
}
L2: Json = {
    "metadata": META,
    "spec": {
        "ipAddressPools": ["main"],
        "ipAddressPoolSelectors": [SELECTOR],
        "nodeSelectors": [{"matchLabels": {"topology.kubernetes.io/zone": "z1"}}],
        "preferredNodeSelectors": [{"weight": 5, "preference": SELECTOR}],
        "interfaces": ["eth0"],
        "serviceSelectors": [{"matchLabels": {"app": "web"}}],
    },
}
ADVERTISEMENT: Json = {
    "metadata": META,
    "spec": {
        "aggregationLength": 30,
        "aggregationLengthV6": 126,
        "localPref": 100,
        "communities": ["64512:1", "own", "large:64512:1:1"],
        "ipAddressPools": ["main"],
        "peers": ["main"],
        "nodeSelectors": [{"matchLabels": {"topology.kubernetes.io/zone": "z1"}}],
    },
}
PEER: Json = {
    "metadata": META,
    "spec": {
        "myASN": 64512,
        "peerASN": 64600,
        "peerAddress": "192.168.99.254",
        "sourceAddress": "192.168.99.1",
        "peerPort": 179,
        "holdTime": "90s",
        "keepaliveTime": "30s",
        "connectTime": "5s",
        "routerID": "192.168.99.1",
        "nodeSelectors": [{"matchLabels": {"topology.kubernetes.io/zone": "z1"}}],
        "passwordSecret": {"name": "bgp", "namespace": "metallb-system"},
        "bfdProfile": "main",
        "ebgpMultiHop": True,
        "enableGracefulRestart": True,
    },
}
COMMUNITY: Json = {"metadata": META, "spec": {"communities": [{"name": "own", "value": "64512:7"}]}}
PROFILE: Json = {
    "metadata": META,
    "spec": {"receiveInterval": 300, "transmitInterval": 300, "detectMultiplier": 3},
}
BIRD = "/usr/sbin/bird"
SECRET = Secret(metadata=ObjectMeta(name="bgp"), type=PASSWORD_TYPE, data={"password": "czNjcmV0"})
KINDS: dict[str, tuple[Json, type[Any]]] = {
    "service": (BALANCED, Service),
    "slice": (SLICE, EndpointSlice),
    "node": (NODE, Node),
    "pool": (POOL, IpAddressPool),
    "scope": (L2, L2Advertisement),
}
ROUTED: dict[str, tuple[Json, type[Any]]] = KINDS | {
    "advertisement": (ADVERTISEMENT, BgpAdvertisement),
    "peer": (PEER, MetalLbPeer),
    "community": (COMMUNITY, MetalLbCommunity),
    "profile": (PROFILE, BfdProfile),
}


def valid(kinds: Mapping[str, tuple[Json, type[Any]]]) -> Json:
    return {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in kinds.items()}


@pytest.mark.parametrize("changed", KINDS)
def test_addresses_are_given_and_answered_whatever_one_object_has(changed: str) -> None:
    objects = valid(KINDS)
    assert _planned(**objects), "the valid Service has an address for which the node answers"
    for label, item in hostile(*KINDS[changed]):
        try:
            _planned(**(objects | {changed: item}))
        except Exception as failure:
            raise AssertionError(label) from failure


def _planned(
    service: Service,
    slice: EndpointSlice,
    node: Node,
    pool: IpAddressPool,
    scope: L2Advertisement,  # noqa: A002
) -> bool:
    """Whether the node answers for an address, after everything that controller and agents derive."""
    allocator = Allocator()
    pools = read_pools((pool,), {})
    allocator.configure(pools, {"default": {"a": "b"}})
    rebuild(
        allocator, ((address, "default/web", "u1") for address in shown_addresses(service)), {"default/web": service}
    )
    decision = decide("default/web", service, allocator, "")
    status_patch(service, decision.addresses, "7")
    metadata_patch(service, pool.metadata.name, "7")
    scopes, _ = read_l2_scopes((scope,), {})
    facts = L2Facts(
        services={"default/web": service},
        endpoints={"default/web": serving((slice,))},
        pools=pools,
        scopes=scopes,
        nodes={"n1": node},
        alive=frozenset(("n1",)),
    )
    choices = Elector().choose(facts)
    protections, _ = read_protections((service,), {})
    assert str(guard_table(addresses_of(service), protections.values()))
    return any(choice.node == "n1" for choice in choices.values())


@pytest.mark.skipif(not Path(BIRD).exists(), reason=f"needs {BIRD} (Debian: bird2)")
@pytest.mark.parametrize("changed", ROUTED)
def test_bird_accepts_routes_whatever_one_object_has(changed: str, tmp_path: Path) -> None:
    """BIRD itself reads every configuration that differs: one that it refuses would stop the routes of all Services."""
    objects, file = valid(ROUTED), tmp_path / "bird.conf"
    assert "198.51.100.8/30" in _configuration(objects), "the valid Service is announced"
    checked: set[str] = set()
    for label, item in hostile(*ROUTED[changed]):
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
    """What BIRD gets on the node."""
    service, node = objects["service"], objects["node"]
    aliases, _ = read_each((objects["community"],), {}, read_communities)
    profiles, _ = read_each((objects["profile"],), {}, read_profile)
    communities = {name: number for known in aliases.values() for name, number in known.items()}
    names = Vocabulary(communities, profiles, PasswordSecrets("metallb-system", lambda _: SECRET))
    peers, _ = read_each((objects["peer"],), {}, lambda item: read_peer(item, names))
    scopes, _ = read_each((objects["advertisement"],), {}, lambda item: read_advertisement(item, names))
    facts = BgpFacts(
        services={"default/web": service},
        endpoints={"default/web": serving((objects["slice"],))},
        pools=read_pools((objects["pool"],), {}),
        scopes=scopes,
        peers=peers,
    )
    planned = plan_routes(facts, node)
    advertised("n1", planned.announcements)
    return render(
        BgpConfiguration(
            router_id=IPv4Address("192.168.99.1"),
            link="eth0",
            service_networks=planned.routes.networks,
            sessions=planned.routes.sessions,
            log_file="/bird.log",
        )
    )

"""Creates the objects that every local cluster has: cluster DNS, the network's configuration, podwire's kinds.

Existing objects are not changed, so that a user's change survives the next ``podwire up``. Only the routing backend and
the settings of proxy and policy follow the cluster's configuration: settings in it are set, all other settings get
their default again.
"""

import asyncio
from importlib import resources
from ipaddress import ip_network
from typing import Any

from podwire.cluster.names import GATEWAY_CONTROLLER
from podwire.cluster.networkconfig import NETWORK_CONFIG, SYSTEM_NAMESPACE
from podwire.errors import AlreadyExists, NotFound
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.resources import CONFIGMAPS, DAEMONSETS, DEPLOYMENTS, GATEWAYCLASSES, IPPOOLS, Resource
from podwire.local.config import ClusterConfig, block_sizes
from podwire.local.manifests import Manifest, parse_manifests
from podwire.local.objects import Kinds
from podwire.local.topology import Topology
from podwire.policy import settings as policy_settings
from podwire.proxy.settings import as_keys
from podwire.runtime.backoff import Backoff

_WORKLOADS: dict[str, Resource[Any]] = {"Deployment": DEPLOYMENTS, "DaemonSet": DAEMONSETS}
_OF_EVERY_CLUSTER = ("clusternetworkpolicy.yaml", "egresspolicy.yaml", "metallb.yaml", "dns.yaml")
_POOL, _SMALL_POOL, _POOL6 = (200, 249), (2, 10), (0x1000, 0x10FF)
"""First and last number of the addresses for load balancers on the fabric; nodes count from 11 up."""
_POOL_NODES = 150
"""With fewer nodes on a segment, the numbers from 200 up are free, also when some nodes are added."""
_OF_BACKENDS = {"bgp": ("bgp.yaml", "ippool.yaml")}
"""The kinds of API objects that configure a routing backend."""
_DNS_SERVICE, _DNS_OF_NODE = "kube-dns", "podwire-dns-node"
_OF_BLOCKS = ("ippool.yaml", "ipamblock.yaml")
_POOLS = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
"""The names that Calico gives to the pools of a new cluster."""


def files_of(config: ClusterConfig) -> tuple[str, ...]:
    """The manifests of a cluster: kinds of every cluster, cluster DNS, and what its configuration asks for."""
    files = set(_OF_EVERY_CLUSTER)
    files |= set(_OF_BACKENDS.get(config.routing.backend, ()))
    files |= set(_OF_BLOCKS if config.ipam.mode == "blocks" else ())
    files |= {"gateway.yaml", "gatewayapi.yaml", "gatewayroutes.yaml"} if config.gateway else set()
    files |= {"dnsnode.yaml"} if config.dns.node_local else set()
    return tuple(sorted(files))


def manifests(files: tuple[str, ...], service_dns: str, replicas: int) -> tuple[Manifest, ...]:
    """The objects in files of this folder, with ``replicas`` of each Deployment; DNS answers on ``service_dns``."""
    objects = tuple(obj for name in files for obj in _read(name))
    for manifest in objects:
        name = manifest.body["metadata"]["name"]
        if manifest.kind == "Service" and name == _DNS_SERVICE:
            manifest.body["spec"] |= {"clusterIP": service_dns, "clusterIPs": [service_dns]}
        if manifest.kind == "ConfigMap" and name == _DNS_OF_NODE:
            text = manifest.body["data"]["config.yaml"]
            manifest.body["data"]["config.yaml"] = text.replace("listen: [10.96.0.10]", f'listen: ["{service_dns}"]')
        if manifest.kind == "Deployment":
            manifest.body["spec"]["replicas"] = replicas
    return objects


def _read(name: str) -> tuple[Manifest, ...]:
    text = resources.files("podwire.local.addons").joinpath(name).read_text(encoding="utf-8")
    return parse_manifests(text, name)


def network_config(config: ClusterConfig, before: ClusterConfig | None) -> dict[str, Any]:
    """The ConfigMap ``kube-system/podwire-config``; settings that only ``before`` names get their defaults."""
    proxy = as_keys(config.proxy, as_keys(before.proxy) if before is not None else ())
    named = policy_settings.as_keys(before.policy) if before is not None else ()
    policy = policy_settings.as_keys(config.policy, named)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NETWORK_CONFIG, "namespace": SYSTEM_NAMESPACE},
        "data": {"routing.backend": config.routing.backend, **proxy, **policy},
    }


async def ensure(
    client: Client, topology: Topology, config: ClusterConfig, service_dns: str, before: ClusterConfig | None
) -> None:
    """Creates missing objects and returns when all exist; ``before`` is the previous configuration."""
    kinds = Kinds(client)
    default_objects = manifests(files_of(config), service_dns, min(2, config.nodes))
    await asyncio.gather(*(_create(client, kinds, m) for m in default_objects), _network(client, before, config))
    if config.ipam.mode == "blocks":
        await _pools(client, config)
    if config.gateway:
        await _gateway_class(client)
    if before is None:
        for manifest in load_balancer(topology, config):
            await _create(client, kinds, manifest)


async def _pools(client: Client, config: ClusterConfig) -> None:
    """Creates the pools of a new cluster, one for each of its pod networks."""
    for cidr, size in zip(config.pod_cidrs, block_sizes(config), strict=True):
        pool = {
            "apiVersion": IPPOOLS.api_version,
            "kind": IPPOOLS.kind,
            "metadata": {"name": _POOLS[ip_network(cidr).version]},
            "spec": {"cidr": cidr, "blockSize": size, "natOutgoing": True},
        }
        await _create_when_served(client, IPPOOLS, pool)


async def _gateway_class(client: Client) -> None:
    """Creates the class of Gateways that the gateway serves."""
    value = {
        "apiVersion": GATEWAYCLASSES.api_version,
        "kind": GATEWAYCLASSES.kind,
        "metadata": {"name": "podwire"},
        "spec": {"controllerName": GATEWAY_CONTROLLER},
    }
    await _create_when_served(client, GATEWAYCLASSES, value)


async def _create_when_served(client: Client, resource: Resource[Any], value: dict[str, Any]) -> None:
    """Creates a cluster-scoped object whose kind has just been defined, and may not be served yet."""
    backoff = Backoff(0.02, 1.0)
    while True:
        try:
            await client.create(resource, value)
        except AlreadyExists:
            pass
        except NotFound:
            await client.clock.sleep(backoff.next_delay_s())
            continue
        break


def load_balancer(topology: Topology, config: ClusterConfig) -> tuple[Manifest, ...]:
    """The pool of addresses on the first segment of the fabric, and its announcement by the nodes there.

    They are made with the cluster alone, so that a user may delete them.
    """
    segment, families = topology.segment(0), {ip_network(cidr).version for cidr in config.service_cidrs}
    numbers = _POOL if config.nodes // config.segments < _POOL_NODES else _SMALL_POOL
    addresses = [f"{segment.network[numbers[0]]}-{segment.network[numbers[1]]}"] * (4 in families)
    addresses += [f"{segment.network6[_POOL6[0]]}-{segment.network6[_POOL6[1]]}"] * (6 in families)
    text = resources.files("podwire.local.addons").joinpath("fabricpool.yaml").read_text(encoding="utf-8")
    objects = parse_manifests(text, "fabricpool.yaml")
    for manifest in objects:
        if manifest.kind == "IPAddressPool":
            manifest.body["spec"]["addresses"] = addresses
    return objects


async def _create(client: Client, kinds: Kinds, manifest: Manifest) -> None:
    """Creates an object that is missing; a workload that an earlier release made of another kind stays."""
    if manifest.kind in _WORKLOADS and await _runs_as_other_kind(client, manifest):
        return
    try:
        resource = await kinds.resource(manifest)
        await client.create(resource, manifest.body, manifest.body["metadata"].get("namespace", ""))
    except AlreadyExists:
        pass


async def _runs_as_other_kind(client: Client, manifest: Manifest) -> bool:
    meta = manifest.body["metadata"]
    for kind, resource in _WORKLOADS.items():
        if kind != manifest.kind:
            try:
                await client.get(resource.raw, meta["name"], meta["namespace"])
            except NotFound:
                continue
            return True
    return False


async def _network(client: Client, before: ClusterConfig | None, config: ClusterConfig) -> None:
    patched_config = network_config(config, before)
    try:
        await client.create(CONFIGMAPS.raw, patched_config, SYSTEM_NAMESPACE)
    except AlreadyExists:
        patch = {"data": patched_config["data"]}
        await client.patch(CONFIGMAPS.raw, NETWORK_CONFIG, patch, SYSTEM_NAMESPACE, patch_type=MERGE_PATCH)

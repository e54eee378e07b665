"""The controllers of a cluster by name, and their configuration.

``run`` is a whole ``podwire controller``; with ``leader_election`` several may run, and one of them is active.
"""

import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.controllers.cloudaddresses.plan import AddressTargets
from podwire.controllers.cloudroutes.registry import make_address_provider, make_provider
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.controllers.nodeipam.allocate import NodeCidrs, parse_cidrs
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.controller import Controller, Environment
from podwire.kube.lease import Election, LeaderElection
from podwire.runtime.registry import Registry

CONTROLLERS: Registry[Any] = Registry(
    "controller",
    "parts",
    {
        "nodeipam": "podwire.controllers.nodeipam.controller:NodeIpamController",
        "endpointslice": "podwire.controllers.endpointslice.controller:EndpointSliceController",
        "endpointslicemirroring": "podwire.controllers.endpointslice.mirroring:EndpointSliceMirroringController",
        "service": "podwire.controllers.service.controller:ServiceController",
        "ipamblocks": "podwire.controllers.ipamblocks.controller:IpamBlocksController",
        "loadbalancer": "podwire.controllers.loadbalancer.controller:LoadBalancerController",
        "policystatus": "podwire.controllers.policystatus.controller:PolicyStatusController",
        "egress": "podwire.controllers.egress.controller:EgressController",
        "cloudaddresses": "podwire.controllers.cloudaddresses.controller:CloudAddressesController",
        "cloudroutes": "podwire.controllers.cloudroutes.controller:CloudRoutesController",
    },
)
"""Controllers of any cluster; a local cluster has further ones in a registry of its own."""


OWN_CONTROLLERS = ("policystatus", "egress")
"""The controllers that no Kubernetes cluster has of its own; the others would work against those of the cluster."""


class ControllerConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Configuration of a controller process; CIDRs and masks are one per address family."""

    parts: tuple[str, ...] = OWN_CONTROLLERS
    cluster_cidrs: tuple[str, ...] = msgspec.field(default=("10.244.0.0/16",), name="clusterCIDRs")
    node_cidr_masks: tuple[int, ...] = msgspec.field(default=(), name="nodeCIDRMasks")
    service_cidrs: tuple[str, ...] = msgspec.field(default=("10.96.0.0/16",), name="serviceCIDRs")
    leader_election: bool = False
    namespace: str = "kube-system"
    cloud: CloudSettings = CloudSettings()
    """The cloud whose network routes to pods, for the controllers ``cloudroutes`` and ``cloudaddresses``."""
    load_balancer_class: str = ""
    """The class of the Services that get addresses of IPAddressPools; empty: those without a class."""
    ca_file: str = ""
    """Certificate of the cluster's authority, for the ConfigMap ``kube-root-ca.crt``; empty: it is not written."""

    def arguments(self, name: str) -> tuple[object, ...]:
        """Arguments of the controller with this name, besides the environment.

        Raises: ConfigError for a wrong network, or a cloud without a client.
        """
        if name == "cloudroutes":
            networks = parse_cidrs("controller", "clusterCIDRs", self.cluster_cidrs)
            return make_provider(self.cloud), networks, self.namespace
        if name == "cloudaddresses":
            cloud = self.cloud
            targets = AddressTargets(cloud.warm_addresses, cloud.minimum_addresses, cloud.ipv6, cloud.prefixes)
            return make_address_provider(self.cloud), targets, self.namespace
        if name == "loadbalancer":
            return self.namespace, self.load_balancer_class
        return (node_cidrs(self),) if name == "nodeipam" else ()


def make_controllers(
    environment: Environment,
    config: ControllerConfig,
    known: Registry[Any],
    identities: Mapping[str, Client] | None = None,
) -> dict[str, Controller]:
    """The configured controllers of ``known`` (name to ``module:Class``), in the configured order.

    A controller in ``identities`` writes with the client there.

    Raises: ConfigError for an unknown name or a wrong network.
    """
    parts: dict[str, Controller] = {}
    for name in config.parts:
        known.check(name, "controller")
        client = (identities or {}).get(name)
        own = environment.acting(client) if client is not None else environment
        parts[name] = known.load(name)(own, *config.arguments(name))
    return parts


def node_cidrs(config: ControllerConfig) -> NodeCidrs:
    """The allocator of a configuration.

    Raises: ConfigError.
    """
    cluster = parse_cidrs("controller", "clusterCIDRs", config.cluster_cidrs)
    services = parse_cidrs("controller", "serviceCIDRs", config.service_cidrs)
    if config.node_cidr_masks and len(config.node_cidr_masks) != len(cluster):
        raise ConfigError("controller", "nodeCIDRMasks", "expected one mask for each of clusterCIDRs")
    return NodeCidrs(cluster, config.node_cidr_masks, services)


async def run(
    client: Client,
    config: ControllerConfig,
    known: Registry[Any] = CONTROLLERS,
    identities: Mapping[str, Client] | None = None,
) -> None:
    """Runs the configured controllers until cancelled; a controller in ``identities`` writes with the client there.

    Raises: ConfigError before a controller starts.
    """

    async def work() -> None:
        environment = Environment(client)
        await environment.run(make_controllers(environment, config, known, identities))

    if not config.leader_election:
        await work()
        return
    node_cidrs(config)
    for name in {"cloudroutes", "cloudaddresses"} & set(config.parts):
        config.arguments(name)
    identity = f"{socket.gethostname()}_{id(client):x}"
    election = LeaderElection(client, Election(config.namespace, "podwire-controller", identity))
    while True:
        await election.run(work)

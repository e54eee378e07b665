"""The API resources that podwire reads and writes, one constant each.

A :class:`Resource` has the path of a kind's objects and the type into which they decode. ``type`` is ``dict`` for kinds
without a struct in the model. ``PODS.raw`` decodes pods into dictionaries, which keep every field. A custom kind needs
a constant of its own; there is no registry.

A constant names its type as ``module:Class``, which is imported when the first object is decoded: all types together
are 300 structs, which takes a command line longer to import than a request takes.
"""

import builtins
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import quote

if TYPE_CHECKING:
    from podwire.model.autoscaling import HorizontalPodAutoscaler
    from podwire.model.backendtls import BackendTlsPolicy
    from podwire.model.bgp import BgpConfigurationObject, BgpFilterObject, BgpPeerObject, IpPoolObject
    from podwire.model.egress import EgressPolicy
    from podwire.model.gatewayapi import Gateway, GatewayClass, HttpRoute, ListenerSet, ReferenceGrant
    from podwire.model.gatewayroutes import GrpcRoute, TcpRoute, TlsRoute, UdpRoute
    from podwire.model.ingress import Ingress, IngressClass
    from podwire.model.ipam import IpamBlock
    from podwire.model.meta import Object
    from podwire.model.metallb import (
        BfdProfile,
        BgpAdvertisement,
        IpAddressPool,
        L2Advertisement,
        MetalLbCommunity,
        MetalLbPeer,
        ServiceStatusObject,
    )
    from podwire.model.node import Lease, Node
    from podwire.model.pod import Pod
    from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
    from podwire.model.service import Endpoints, EndpointSlice, Service
    from podwire.model.serviceimport import ServiceImport
    from podwire.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
    from podwire.model.workload import (
        ControllerRevision,
        CronJob,
        DaemonSet,
        Deployment,
        Job,
        PodDisruptionBudget,
        ReplicaSet,
        ReplicationController,
        StatefulSet,
    )

T = TypeVar("T")
Json = dict[str, Any]
"""An object in its API form."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """The path of one kind's objects; ``model`` is the type into which they decode, or ``module:Class`` of it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    model: "builtins.type[T] | str"

    @property
    def type(self) -> "builtins.type[T]":
        """The type into which objects decode."""
        return cast("builtins.type[T]", _loaded(self.model) if isinstance(self.model, str) else self.model)

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def raw(self) -> "Resource[Json]":
        """The same resource, decoded into dictionaries."""
        return cast("Resource[Json]", replace(cast("Resource[Any]", self), model=dict))

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of a collection (no name), an object, or a subresource of one."""
        segments = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            segments += ["namespaces", quote(namespace, safe="")]
        segments.append(self.plural)
        if name:
            segments.append(quote(name, safe=""))
        if subresource:
            segments.append(subresource)
        return "/".join(segments)


@cache
def _loaded(model: str) -> Any:
    module, _, name = model.partition(":")
    return getattr(import_module(module), name)


def _raw(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource[Json]:
    return Resource(group, version, plural, kind, namespaced, dict)


PODS: "Resource[Pod]" = Resource("", "v1", "pods", "Pod", True, "podwire.model.pod:Pod")
SERVICES: "Resource[Service]" = Resource("", "v1", "services", "Service", True, "podwire.model.service:Service")
ENDPOINTS: "Resource[Endpoints]" = Resource("", "v1", "endpoints", "Endpoints", True, "podwire.model.service:Endpoints")
NODES: "Resource[Node]" = Resource("", "v1", "nodes", "Node", False, "podwire.model.node:Node")
NAMESPACES: "Resource[Object]" = Resource("", "v1", "namespaces", "Namespace", False, "podwire.model.meta:Object")
CONFIGMAPS = _raw("", "v1", "configmaps", "ConfigMap")
SECRETS = _raw("", "v1", "secrets", "Secret")
SERVICEACCOUNTS = _raw("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = _raw("", "v1", "events", "Event")
REPLICATIONCONTROLLERS: "Resource[ReplicationController]" = Resource(
    "", "v1", "replicationcontrollers", "ReplicationController", True, "podwire.model.workload:ReplicationController"
)
PERSISTENTVOLUMECLAIMS: "Resource[PersistentVolumeClaim]" = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, "podwire.model.storage:PersistentVolumeClaim"
)
PERSISTENTVOLUMES: "Resource[PersistentVolume]" = Resource(
    "", "v1", "persistentvolumes", "PersistentVolume", False, "podwire.model.storage:PersistentVolume"
)
STORAGECLASSES: "Resource[StorageClass]" = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", False, "podwire.model.storage:StorageClass"
)
ENDPOINTSLICES: "Resource[EndpointSlice]" = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, "podwire.model.service:EndpointSlice"
)
SERVICEIMPORTS: "Resource[ServiceImport]" = Resource(
    "multicluster.x-k8s.io",
    "v1alpha1",
    "serviceimports",
    "ServiceImport",
    True,
    "podwire.model.serviceimport:ServiceImport",
)
LEASES: "Resource[Lease]" = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, "podwire.model.node:Lease")
DEPLOYMENTS: "Resource[Deployment]" = Resource(
    "apps", "v1", "deployments", "Deployment", True, "podwire.model.workload:Deployment"
)
REPLICASETS: "Resource[ReplicaSet]" = Resource(
    "apps", "v1", "replicasets", "ReplicaSet", True, "podwire.model.workload:ReplicaSet"
)
DAEMONSETS: "Resource[DaemonSet]" = Resource(
    "apps", "v1", "daemonsets", "DaemonSet", True, "podwire.model.workload:DaemonSet"
)
STATEFULSETS: "Resource[StatefulSet]" = Resource(
    "apps", "v1", "statefulsets", "StatefulSet", True, "podwire.model.workload:StatefulSet"
)
CONTROLLERREVISIONS: "Resource[ControllerRevision]" = Resource(
    "apps", "v1", "controllerrevisions", "ControllerRevision", True, "podwire.model.workload:ControllerRevision"
)
JOBS: "Resource[Job]" = Resource("batch", "v1", "jobs", "Job", True, "podwire.model.workload:Job")
CRONJOBS: "Resource[CronJob]" = Resource("batch", "v1", "cronjobs", "CronJob", True, "podwire.model.workload:CronJob")
PODDISRUPTIONBUDGETS: "Resource[PodDisruptionBudget]" = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, "podwire.model.workload:PodDisruptionBudget"
)
HORIZONTALPODAUTOSCALERS: "Resource[HorizontalPodAutoscaler]" = Resource(
    "autoscaling",
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    True,
    "podwire.model.autoscaling:HorizontalPodAutoscaler",
)
NETWORKPOLICIES: "Resource[NetworkPolicy]" = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, "podwire.model.policy:NetworkPolicy"
)
CLUSTERNETWORKPOLICIES: "Resource[ClusterNetworkPolicy]" = Resource(
    "policy.networking.k8s.io",
    "v1alpha2",
    "clusternetworkpolicies",
    "ClusterNetworkPolicy",
    False,
    "podwire.model.policy:ClusterNetworkPolicy",
)
IPAMBLOCKS: "Resource[IpamBlock]" = Resource(
    "podwire.io", "v1alpha1", "ipamblocks", "IPAMBlock", False, "podwire.model.ipam:IpamBlock"
)
EGRESSPOLICIES: "Resource[EgressPolicy]" = Resource(
    "podwire.io", "v1alpha1", "egresspolicies", "EgressPolicy", False, "podwire.model.egress:EgressPolicy"
)
CERTIFICATESIGNINGREQUESTS = _raw(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
SERVICECIDRS = _raw("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
INGRESSES: "Resource[Ingress]" = Resource(
    "networking.k8s.io", "v1", "ingresses", "Ingress", True, "podwire.model.ingress:Ingress"
)
INGRESSCLASSES: "Resource[IngressClass]" = Resource(
    "networking.k8s.io", "v1", "ingressclasses", "IngressClass", False, "podwire.model.ingress:IngressClass"
)
CUSTOMRESOURCEDEFINITIONS = _raw(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
GATEWAYCLASSES: "Resource[GatewayClass]" = Resource(
    "gateway.networking.k8s.io", "v1", "gatewayclasses", "GatewayClass", False, "podwire.model.gatewayapi:GatewayClass"
)
GATEWAYS: "Resource[Gateway]" = Resource(
    "gateway.networking.k8s.io", "v1", "gateways", "Gateway", True, "podwire.model.gatewayapi:Gateway"
)
HTTPROUTES: "Resource[HttpRoute]" = Resource(
    "gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute", True, "podwire.model.gatewayapi:HttpRoute"
)
GRPCROUTES: "Resource[GrpcRoute]" = Resource(
    "gateway.networking.k8s.io", "v1", "grpcroutes", "GRPCRoute", True, "podwire.model.gatewayroutes:GrpcRoute"
)
TLSROUTES: "Resource[TlsRoute]" = Resource(
    "gateway.networking.k8s.io", "v1", "tlsroutes", "TLSRoute", True, "podwire.model.gatewayroutes:TlsRoute"
)
TCPROUTES: "Resource[TcpRoute]" = Resource(
    "gateway.networking.k8s.io", "v1", "tcproutes", "TCPRoute", True, "podwire.model.gatewayroutes:TcpRoute"
)
UDPROUTES: "Resource[UdpRoute]" = Resource(
    "gateway.networking.k8s.io", "v1", "udproutes", "UDPRoute", True, "podwire.model.gatewayroutes:UdpRoute"
)
LISTENERSETS: "Resource[ListenerSet]" = Resource(
    "gateway.networking.k8s.io", "v1", "listenersets", "ListenerSet", True, "podwire.model.gatewayapi:ListenerSet"
)
BACKENDTLSPOLICIES: "Resource[BackendTlsPolicy]" = Resource(
    "gateway.networking.k8s.io",
    "v1",
    "backendtlspolicies",
    "BackendTLSPolicy",
    True,
    "podwire.model.backendtls:BackendTlsPolicy",
)
REFERENCEGRANTS: "Resource[ReferenceGrant]" = Resource(
    "gateway.networking.k8s.io",
    "v1",
    "referencegrants",
    "ReferenceGrant",
    True,
    "podwire.model.gatewayapi:ReferenceGrant",
)
BGPCONFIGURATIONS: "Resource[BgpConfigurationObject]" = Resource(
    "projectcalico.org",
    "v3",
    "bgpconfigurations",
    "BGPConfiguration",
    False,
    "podwire.model.bgp:BgpConfigurationObject",
)
BGPPEERS: "Resource[BgpPeerObject]" = Resource(
    "projectcalico.org", "v3", "bgppeers", "BGPPeer", False, "podwire.model.bgp:BgpPeerObject"
)
BGPFILTERS: "Resource[BgpFilterObject]" = Resource(
    "projectcalico.org", "v3", "bgpfilters", "BGPFilter", False, "podwire.model.bgp:BgpFilterObject"
)
IPPOOLS: "Resource[IpPoolObject]" = Resource(
    "projectcalico.org", "v3", "ippools", "IPPool", False, "podwire.model.bgp:IpPoolObject"
)
IPADDRESSPOOLS: "Resource[IpAddressPool]" = Resource(
    "metallb.io", "v1beta1", "ipaddresspools", "IPAddressPool", True, "podwire.model.metallb:IpAddressPool"
)
L2ADVERTISEMENTS: "Resource[L2Advertisement]" = Resource(
    "metallb.io", "v1beta1", "l2advertisements", "L2Advertisement", True, "podwire.model.metallb:L2Advertisement"
)
BGPADVERTISEMENTS: "Resource[BgpAdvertisement]" = Resource(
    "metallb.io", "v1beta1", "bgpadvertisements", "BGPAdvertisement", True, "podwire.model.metallb:BgpAdvertisement"
)
METALLB_PEERS: "Resource[MetalLbPeer]" = Resource(
    "metallb.io", "v1beta2", "bgppeers", "BGPPeer", True, "podwire.model.metallb:MetalLbPeer"
)
METALLB_COMMUNITIES: "Resource[MetalLbCommunity]" = Resource(
    "metallb.io", "v1beta1", "communities", "Community", True, "podwire.model.metallb:MetalLbCommunity"
)
SERVICEL2STATUSES: "Resource[ServiceStatusObject]" = Resource(
    "metallb.io", "v1beta1", "servicel2statuses", "ServiceL2Status", True, "podwire.model.metallb:ServiceStatusObject"
)
SERVICEBGPSTATUSES: "Resource[ServiceStatusObject]" = Resource(
    "metallb.io", "v1beta1", "servicebgpstatuses", "ServiceBGPStatus", True, "podwire.model.metallb:ServiceStatusObject"
)
BFDPROFILES: "Resource[BfdProfile]" = Resource(
    "metallb.io", "v1beta1", "bfdprofiles", "BFDProfile", True, "podwire.model.metallb:BfdProfile"
)

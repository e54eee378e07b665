"""The API resources that podwire reads and writes, one constant each.

A :class:`Resource` has the path of a kind's objects and the type into which they decode. ``type`` is ``dict`` for kinds
without a struct in the model. ``PODS.raw`` decodes pods into dictionaries, which keep every field. A custom kind needs
a constant of its own; there is no registry.
"""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

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
    """The path of one kind's objects; ``type`` is the type into which they decode."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def raw(self) -> "Resource[Json]":
        """The same resource, decoded into dictionaries."""
        return cast("Resource[Json]", replace(cast("Resource[Any]", self), type=dict))

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


def _raw(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource[Json]:
    return Resource(group, version, plural, kind, namespaced, dict)


PODS = Resource("", "v1", "pods", "Pod", True, Pod)
SERVICES = Resource("", "v1", "services", "Service", True, Service)
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints", True, Endpoints)
NODES = Resource("", "v1", "nodes", "Node", False, Node)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Object)
CONFIGMAPS = _raw("", "v1", "configmaps", "ConfigMap")
SECRETS = _raw("", "v1", "secrets", "Secret")
SERVICEACCOUNTS = _raw("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = _raw("", "v1", "events", "Event")
REPLICATIONCONTROLLERS = Resource(
    "", "v1", "replicationcontrollers", "ReplicationController", True, ReplicationController
)
PERSISTENTVOLUMECLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, PersistentVolumeClaim
)
PERSISTENTVOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, PersistentVolume)
STORAGECLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, StorageClass)
ENDPOINTSLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, EndpointSlice)
SERVICEIMPORTS = Resource("multicluster.x-k8s.io", "v1alpha1", "serviceimports", "ServiceImport", True, ServiceImport)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, ReplicaSet)
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True, StatefulSet)
CONTROLLERREVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision", True, ControllerRevision)
JOBS = Resource("batch", "v1", "jobs", "Job", True, Job)
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob", True, CronJob)
PODDISRUPTIONBUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, PodDisruptionBudget
)
HORIZONTALPODAUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, HorizontalPodAutoscaler
)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, NetworkPolicy)
CLUSTERNETWORKPOLICIES = Resource(
    "policy.networking.k8s.io",
    "v1alpha2",
    "clusternetworkpolicies",
    "ClusterNetworkPolicy",
    False,
    ClusterNetworkPolicy,
)
IPAMBLOCKS = Resource("podwire.io", "v1alpha1", "ipamblocks", "IPAMBlock", False, IpamBlock)
EGRESSPOLICIES = Resource("podwire.io", "v1alpha1", "egresspolicies", "EgressPolicy", False, EgressPolicy)
CERTIFICATESIGNINGREQUESTS = _raw(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
SERVICECIDRS = _raw("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
INGRESSES = Resource("networking.k8s.io", "v1", "ingresses", "Ingress", True, Ingress)
INGRESSCLASSES = Resource("networking.k8s.io", "v1", "ingressclasses", "IngressClass", False, IngressClass)
CUSTOMRESOURCEDEFINITIONS = _raw(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
GATEWAYCLASSES = Resource("gateway.networking.k8s.io", "v1", "gatewayclasses", "GatewayClass", False, GatewayClass)
GATEWAYS = Resource("gateway.networking.k8s.io", "v1", "gateways", "Gateway", True, Gateway)
HTTPROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute", True, HttpRoute)
GRPCROUTES = Resource("gateway.networking.k8s.io", "v1", "grpcroutes", "GRPCRoute", True, GrpcRoute)
TLSROUTES = Resource("gateway.networking.k8s.io", "v1", "tlsroutes", "TLSRoute", True, TlsRoute)
TCPROUTES = Resource("gateway.networking.k8s.io", "v1", "tcproutes", "TCPRoute", True, TcpRoute)
UDPROUTES = Resource("gateway.networking.k8s.io", "v1", "udproutes", "UDPRoute", True, UdpRoute)
LISTENERSETS = Resource("gateway.networking.k8s.io", "v1", "listenersets", "ListenerSet", True, ListenerSet)
BACKENDTLSPOLICIES = Resource(
    "gateway.networking.k8s.io", "v1", "backendtlspolicies", "BackendTLSPolicy", True, BackendTlsPolicy
)
REFERENCEGRANTS = Resource("gateway.networking.k8s.io", "v1", "referencegrants", "ReferenceGrant", True, ReferenceGrant)
BGPCONFIGURATIONS = Resource(
    "projectcalico.org", "v3", "bgpconfigurations", "BGPConfiguration", False, BgpConfigurationObject
)
BGPPEERS = Resource("projectcalico.org", "v3", "bgppeers", "BGPPeer", False, BgpPeerObject)
BGPFILTERS = Resource("projectcalico.org", "v3", "bgpfilters", "BGPFilter", False, BgpFilterObject)
IPPOOLS = Resource("projectcalico.org", "v3", "ippools", "IPPool", False, IpPoolObject)
IPADDRESSPOOLS = Resource("metallb.io", "v1beta1", "ipaddresspools", "IPAddressPool", True, IpAddressPool)
L2ADVERTISEMENTS = Resource("metallb.io", "v1beta1", "l2advertisements", "L2Advertisement", True, L2Advertisement)
BGPADVERTISEMENTS = Resource("metallb.io", "v1beta1", "bgpadvertisements", "BGPAdvertisement", True, BgpAdvertisement)
METALLB_PEERS = Resource("metallb.io", "v1beta2", "bgppeers", "BGPPeer", True, MetalLbPeer)
METALLB_COMMUNITIES = Resource("metallb.io", "v1beta1", "communities", "Community", True, MetalLbCommunity)
SERVICEL2STATUSES = Resource("metallb.io", "v1beta1", "servicel2statuses", "ServiceL2Status", True, ServiceStatusObject)
SERVICEBGPSTATUSES = Resource(
    "metallb.io", "v1beta1", "servicebgpstatuses", "ServiceBGPStatus", True, ServiceStatusObject
)
BFDPROFILES = Resource("metallb.io", "v1beta1", "bfdprofiles", "BFDProfile", True, BfdProfile)

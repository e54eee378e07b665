"""Service, EndpointSlice and Endpoints (``v1``, ``discovery.k8s.io/v1``)."""

import msgspec

from podwire.model.meta import Condition, Fact, ObjectMeta, ObjectReference

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
"""The label of an EndpointSlice that names its Service."""
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
"""The label of a Service that another proxy programs."""
HEADLESS_LABEL = "service.kubernetes.io/headless"
"""The label of EndpointSlices of headless Services."""
TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
"""The annotation of an EndpointSlice with the time of the first pod change that the slice was written for."""


class ServicePort(Fact, frozen=True):
    """One port; ``target_port`` is a number or the name of a container port, None means ``port``."""

    name: str = ""
    protocol: str = "TCP"
    port: int = 0
    target_port: int | str | None = None
    node_port: int = 0
    app_protocol: str | None = None


class ClientIPConfig(Fact, frozen=True):
    """How long, in seconds, one client keeps its endpoint."""

    timeout_seconds: int = 10800


class SessionAffinityConfig(Fact, frozen=True):
    """Settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Fact, frozen=True):
    """The desired state of a Service; ``cluster_ips`` has the text ``None`` for a headless Service."""

    type: str = "ClusterIP"
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    ip_families: tuple[str, ...] = msgspec.field(default=(), name="ipFamilies")
    ip_family_policy: str | None = None
    external_ips: tuple[str, ...] = msgspec.field(default=(), name="externalIPs")
    external_name: str = ""
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: tuple[str, ...] = ()
    load_balancer_class: str | None = None
    allocate_load_balancer_node_ports: bool | None = None
    health_check_node_port: int = 0
    publish_not_ready_addresses: bool = False


class LoadBalancerIngress(Fact, frozen=True):
    """One address of a load balancer; ``ip_mode`` is VIP or Proxy."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = msgspec.field(default=None, name="ipMode")


class LoadBalancerStatus(Fact, frozen=True):
    """Addresses of a load balancer."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Fact, frozen=True):
    """The status of a Service, written by controllers."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: tuple[Condition, ...] = ()


class Service(Fact, frozen=True):
    """``v1`` Service."""

    api_version: str = "v1"
    kind: str = "Service"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    @property
    def headless(self) -> bool:
        """Whether the Service explicitly has no virtual address."""
        return self.spec.cluster_ip == "None"


class EndpointConditions(Fact, frozen=True):
    """None means: ready and serving are true, terminating is false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class HintTarget(Fact, frozen=True):
    """A zone or node that should use an endpoint."""

    name: str


class EndpointHints(Fact, frozen=True):
    """The zones and nodes that should use an endpoint."""

    for_zones: tuple[HintTarget, ...] = ()
    for_nodes: tuple[HintTarget, ...] = ()


class Endpoint(Fact, frozen=True):
    """One endpoint; all its addresses belong to the same pod, consumers use the first."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Fact, frozen=True):
    """One port of a slice; None as number means all ports."""

    name: str | None = None
    protocol: str = "TCP"
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(Fact, frozen=True):
    """``discovery.k8s.io/v1`` EndpointSlice; ``address_type`` is IPv4, IPv6 or FQDN."""

    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"
    metadata: ObjectMeta = ObjectMeta()
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = ()
    ports: tuple[EndpointPort, ...] | None = ()


class EndpointAddress(Fact, frozen=True):
    """One address of an Endpoints subset."""

    ip: str
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSubset(Fact, frozen=True):
    """Addresses times ports."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Fact, frozen=True):
    """``v1`` Endpoints (the older form of EndpointSlice)."""

    api_version: str = "v1"
    kind: str = "Endpoints"
    metadata: ObjectMeta = ObjectMeta()
    subsets: tuple[EndpointSubset, ...] = ()


class ServiceCidrSpec(Fact, frozen=True):
    """The ranges of a ServiceCIDR; the API server accepts one of each family."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(Fact, frozen=True):
    """``networking.k8s.io/v1`` ServiceCIDR: ranges from which Services get their addresses."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceCidrSpec = ServiceCidrSpec()

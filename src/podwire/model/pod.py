"""Pod, with the fields that podwire uses (``v1``)."""

from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import msgspec

from podwire.model.meta import Condition, Fact, ObjectMeta, is_true
from podwire.model.selector import LabelSelector, Requirement

MIRROR_POD = "kubernetes.io/config.mirror"
"""Pod annotation: the uid that the container runtime has for a static pod. Written by the kubelet."""


class ContainerPort(Fact, frozen=True):
    """A declared port."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")


class HTTPHeader(Fact, frozen=True):
    """One header of an HTTP probe."""

    name: str
    value: str = ""


class HTTPGetAction(Fact, frozen=True):
    """An HTTP probe or hook; ``port`` is a number or a container port's name."""

    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Fact, frozen=True):
    """A TCP probe."""

    port: int | str
    host: str = ""


class GRPCAction(Fact, frozen=True):
    """A gRPC health probe."""

    port: int
    service: str | None = None


class ExecAction(Fact, frozen=True):
    """A command run in the container."""

    command: tuple[str, ...] = ()


class SleepAction(Fact, frozen=True):
    """A hook that only waits."""

    seconds: int = 0


class Probe(Fact, frozen=True):
    """A probe; times in seconds."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Fact, frozen=True):
    """A hook at start or stop."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(Fact, frozen=True):
    """Hooks of one container."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class EnvVar(Fact, frozen=True):
    """One variable; ``value_from`` stays in its API form."""

    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class VolumeMount(Fact, frozen=True):
    """Where a volume appears in a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False


class Resources(Fact, frozen=True):
    """Requests and limits as quantities in text form."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ResizePolicy(Fact, frozen=True):
    """Whether a container restarts when a resource changes: NotRequired or RestartContainer."""

    resource_name: str = ""
    restart_policy: str = ""


class Container(Fact, frozen=True):
    """One container; ``restart_policy`` Always on an init container makes it a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    resources: Resources = Resources()
    resize_policy: tuple[ResizePolicy, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    image_pull_policy: str = ""
    restart_policy: str | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    security_context: dict[str, Any] | None = None


class Toleration(Fact, frozen=True):
    """Lets a pod onto tainted nodes; empty key with Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorTerm(Fact, frozen=True):
    """Terms on labels and on fields of a node."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(Fact, frozen=True):
    """One matching term is enough."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNodeTerm(Fact, frozen=True):
    """A term with a weight from 1 to 100."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(Fact, frozen=True):
    """Affinity to nodes."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredNodeTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(Fact, frozen=True):
    """Other pods, in the same topology domain."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Fact, frozen=True):
    """A term with a weight from 1 to 100."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Fact, frozen=True):
    """Affinity or anti-affinity to pods."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Fact, frozen=True):
    """Affinity to nodes and pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Fact, frozen=True):
    """How evenly pods spread over domains; ``when_unsatisfiable`` is DoNotSchedule or ScheduleAnyway."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None


class DNSConfigOption(Fact, frozen=True):
    """One resolver option."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Fact, frozen=True):
    """Resolver settings of a pod."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[DNSConfigOption, ...] = ()


class HostAlias(Fact, frozen=True):
    """One line of /etc/hosts."""

    ip: str
    hostnames: tuple[str, ...] = ()


class PodSpec(Fact, frozen=True):
    """The desired state of a pod; ``volumes`` stay in their API form."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    """Added to a running pod by ``pods/ephemeralcontainers``, for debugging."""
    volumes: tuple[dict[str, Any], ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    dns_policy: str = "ClusterFirst"
    dns_config: PodDNSConfig | None = None
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    set_hostname_as_fqdn: bool = msgspec.field(default=False, name="setHostnameAsFQDN")
    host_aliases: tuple[HostAlias, ...] = ()
    service_account_name: str = ""
    enable_service_links: bool | None = None
    readiness_gates: tuple[dict[str, Any], ...] = ()
    scheduler_name: str = ""
    scheduling_gates: tuple[dict[str, Any], ...] = ()
    priority: int | None = None
    preemption_policy: str = ""
    """``Never``, or ``PreemptLowerPriority`` (also when empty)."""
    share_process_namespace: bool | None = None
    security_context: dict[str, Any] | None = None
    overhead: dict[str, str | int | float] = {}
    """The resources that a RuntimeClass adds to the requests of the containers."""
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")


class PodIP(Fact, frozen=True):
    """One address of a pod."""

    ip: str = ""


class ContainerStatus(Fact, frozen=True):
    """Observed state of a container; ``state`` and ``last_state`` in their API form."""

    name: str
    ready: bool = False
    restart_count: int = 0
    started: bool | None = None
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: dict[str, Any] = {}
    last_state: dict[str, Any] = {}
    resources: Resources | None = None
    """The resources in force; those of the spec are the wanted ones."""


class PodStatus(Fact, frozen=True):
    """The observed state of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: str = ""
    qos_class: str = ""


class Pod(Fact, frozen=True):
    """``v1`` Pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True."""
        return is_true(self.status.conditions, "Ready")

    @property
    def finished(self) -> bool:
        """Whether every container has ended and will not be restarted."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The pod's addresses, primary first, as its status spells them; texts that are not addresses are left out."""
        listed = tuple(p.ip for p in self.status.pod_ips if _is_address(p.ip))
        return listed or ((self.status.pod_ip,) if _is_address(self.status.pod_ip) else ())

    @property
    def declared_ports(self) -> tuple[ContainerPort, ...]:
        """The declared ports of all containers that run as long as the pod: containers and sidecars."""
        sidecars = (container for container in self.spec.init_containers if container.restart_policy == "Always")
        return tuple(port for container in (*self.spec.containers, *sidecars) for port in container.ports)


@lru_cache(maxsize=4096)
def _is_address(text: str) -> bool:
    """Whether a text is an address; the status of a pod may have any text."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text

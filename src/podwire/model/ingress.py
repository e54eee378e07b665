"""Ingress and IngressClass (``networking.k8s.io/v1``)."""

from podwire.model.meta import Fact, ObjectMeta

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
"""The annotation that named the class of an Ingress before ``spec.ingressClassName``."""
DEFAULT_CLASS_ANNOTATION = "ingressclass.kubernetes.io/is-default-class"
"""The annotation of the IngressClass that Ingresses without a class belong to."""


class ServiceBackendPort(Fact, frozen=True):
    """The port of a Service by number or by name."""

    name: str = ""
    number: int = 0


class IngressServiceBackend(Fact, frozen=True):
    """A Service in the namespace of the Ingress."""

    name: str = ""
    port: ServiceBackendPort = ServiceBackendPort()


class TypedReference(Fact, frozen=True):
    """A reference to an object of any kind in the same namespace."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""


class IngressBackend(Fact, frozen=True):
    """A Service, or an object of another kind (``resource``)."""

    service: IngressServiceBackend | None = None
    resource: TypedReference | None = None


class HttpIngressPath(Fact, frozen=True):
    """One path; ``path_type`` is Exact, Prefix or ImplementationSpecific."""

    path: str = ""
    path_type: str = "ImplementationSpecific"
    backend: IngressBackend = IngressBackend()


class HttpIngressRule(Fact, frozen=True):
    """The paths of a host."""

    paths: tuple[HttpIngressPath, ...] = ()


class IngressHostRule(Fact, frozen=True):
    """A host, empty for all, and its paths."""

    host: str = ""
    http: HttpIngressRule | None = None


class IngressTls(Fact, frozen=True):
    """Hosts that are served with the certificate of a Secret; no hosts means those of the rules."""

    hosts: tuple[str, ...] = ()
    secret_name: str = ""


class IngressSpec(Fact, frozen=True):
    """What an Ingress asks for."""

    ingress_class_name: str | None = None
    default_backend: IngressBackend | None = None
    tls: tuple[IngressTls, ...] = ()
    rules: tuple[IngressHostRule, ...] = ()


class IngressAddress(Fact, frozen=True):
    """An address at which an Ingress is served."""

    ip: str = ""
    hostname: str = ""


class IngressLoadBalancer(Fact, frozen=True):
    """The addresses at which an Ingress is served."""

    ingress: tuple[IngressAddress, ...] = ()


class IngressStatus(Fact, frozen=True):
    """The status of an Ingress, written by its controller."""

    load_balancer: IngressLoadBalancer = IngressLoadBalancer()


class Ingress(Fact, frozen=True):
    """``networking.k8s.io/v1`` Ingress."""

    api_version: str = "networking.k8s.io/v1"
    kind: str = "Ingress"
    metadata: ObjectMeta = ObjectMeta()
    spec: IngressSpec = IngressSpec()
    status: IngressStatus = IngressStatus()


class IngressClassParameters(Fact, frozen=True):
    """An object with settings of a class; ``scope`` is Cluster or Namespace."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""
    scope: str = "Cluster"
    namespace: str = ""


class IngressClassSpec(Fact, frozen=True):
    """The controller that serves a class."""

    controller: str = ""
    parameters: IngressClassParameters | None = None


class IngressClass(Fact, frozen=True):
    """``networking.k8s.io/v1`` IngressClass, cluster-scoped."""

    api_version: str = "networking.k8s.io/v1"
    kind: str = "IngressClass"
    metadata: ObjectMeta = ObjectMeta()
    spec: IngressClassSpec = IngressClassSpec()

    @property
    def is_default(self) -> bool:
        """Whether Ingresses without a class belong to this one."""
        return self.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"


def key_of_port(port: ServiceBackendPort) -> str:
    """The text of a port: its name, or its number."""
    return port.name or str(port.number)

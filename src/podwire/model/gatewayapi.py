"""GatewayClass, Gateway, ListenerSet, HTTPRoute, ReferenceGrant (``gateway.networking.k8s.io/v1``), as they are used.

Source: Gateway API v1.6.
"""

import msgspec

from podwire.model.meta import Condition, Fact, ObjectMeta
from podwire.model.selector import LabelSelector

GROUP = "gateway.networking.k8s.io"
API_VERSION = f"{GROUP}/v1"


class ParametersReference(Fact, frozen=True):
    """An object with settings of a GatewayClass or a Gateway."""

    group: str = ""
    kind: str = ""
    name: str = ""


class GatewayClassSpec(Fact, frozen=True):
    """The controller that serves a class."""

    controller_name: str = ""
    parameters_ref: ParametersReference | None = None


class SupportedFeature(Fact, frozen=True):
    """The name of a feature of Gateway API."""

    name: str = ""


class GatewayClassStatus(Fact, frozen=True):
    """What the controller of a class says about it."""

    conditions: tuple[Condition, ...] = ()
    supported_features: tuple[SupportedFeature, ...] = ()


class GatewayClass(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` GatewayClass, cluster-scoped."""

    api_version: str = API_VERSION
    kind: str = "GatewayClass"
    metadata: ObjectMeta = ObjectMeta()
    spec: GatewayClassSpec = GatewayClassSpec()
    status: GatewayClassStatus = GatewayClassStatus()


class CertificateReference(Fact, frozen=True):
    """The certificate of a listener; an empty group is the core group, no namespace the Gateway's own."""

    group: str = ""
    kind: str = "Secret"
    name: str = ""
    namespace: str | None = None


class ListenerTls(Fact, frozen=True):
    """Whether a listener ends TLS (Terminate) or leaves it to backends (Passthrough), and its certificates."""

    mode: str = "Terminate"
    certificate_refs: tuple[CertificateReference, ...] = ()
    options: dict[str, str] = {}


class RouteNamespaces(Fact, frozen=True):
    """The namespaces whose routes may attach; ``from`` is All, Same, Selector or None."""

    origin: str = msgspec.field(default="Same", name="from")
    selector: LabelSelector | None = None


class RouteGroupKind(Fact, frozen=True):
    """A kind of route."""

    group: str = GROUP
    kind: str = ""


class AllowedRoutes(Fact, frozen=True):
    """Which routes may attach to a listener; no kinds means those of its protocol."""

    namespaces: RouteNamespaces = RouteNamespaces()
    kinds: tuple[RouteGroupKind, ...] = ()


class GatewayListener(Fact, frozen=True):
    """A port of a Gateway; an empty host name is any."""

    name: str = ""
    hostname: str = ""
    port: int = 0
    protocol: str = ""
    tls: ListenerTls | None = None
    allowed_routes: AllowedRoutes = AllowedRoutes()


class ObjectRef(Fact, frozen=True):
    """An object by its kind; an empty group is the core group, no namespace that of the object that refers."""

    group: str = ""
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class FrontendValidation(Fact, frozen=True):
    """The authorities of clients' certificates; ``mode`` is AllowValidOnly or AllowInsecureFallback."""

    ca_certificate_refs: tuple[ObjectRef, ...] = ()
    mode: str = "AllowValidOnly"


class FrontendTls(Fact, frozen=True):
    """How the certificates of clients are checked; without a validation none is asked for."""

    validation: FrontendValidation | None = None


class FrontendPortTls(Fact, frozen=True):
    """What replaces the default for a port."""

    port: int = 0
    tls: FrontendTls = FrontendTls()


class GatewayFrontend(Fact, frozen=True):
    """Certificates of clients, for all HTTPS listeners and by port."""

    default: FrontendTls = FrontendTls()
    per_port: tuple[FrontendPortTls, ...] = ()


class GatewayBackendTls(Fact, frozen=True):
    """The certificate that a Gateway shows to backends."""

    client_certificate_ref: CertificateReference | None = None


class GatewayTls(Fact, frozen=True):
    """TLS of a whole Gateway."""

    frontend: GatewayFrontend | None = None
    backend: GatewayBackendTls | None = None


class AllowedListeners(Fact, frozen=True):
    """The namespaces whose ListenerSets may attach; ``from`` is All, Same, Selector or None."""

    namespaces: RouteNamespaces = RouteNamespaces(origin="None")


class GatewayAddress(Fact, frozen=True):
    """An address that a Gateway asks for; without a value any address."""

    type: str = "IPAddress"
    value: str = ""


class GatewayInfrastructure(Fact, frozen=True):
    """What the objects made for a Gateway get."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    parameters_ref: ParametersReference | None = None


class GatewaySpec(Fact, frozen=True):
    """What a Gateway asks for."""

    gateway_class_name: str = ""
    listeners: tuple[GatewayListener, ...] = ()
    addresses: tuple[GatewayAddress, ...] = ()
    infrastructure: GatewayInfrastructure = GatewayInfrastructure()
    allowed_listeners: AllowedListeners = AllowedListeners()
    tls: GatewayTls | None = None


class GatewayStatusAddress(Fact, frozen=True):
    """An address of a Gateway; the type is IPAddress or Hostname."""

    type: str = "IPAddress"
    value: str = ""


class ListenerStatus(Fact, frozen=True):
    """What the controller says about a listener."""

    name: str = ""
    supported_kinds: tuple[RouteGroupKind, ...] = ()
    attached_routes: int = 0
    conditions: tuple[Condition, ...] = ()


class GatewayStatus(Fact, frozen=True):
    """What the controller says about a Gateway."""

    addresses: tuple[GatewayStatusAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()
    listeners: tuple[ListenerStatus, ...] = ()
    attached_listener_sets: int = 0


class Gateway(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` Gateway."""

    api_version: str = API_VERSION
    kind: str = "Gateway"
    metadata: ObjectMeta = ObjectMeta()
    spec: GatewaySpec = GatewaySpec()
    status: GatewayStatus = GatewayStatus()


class ParentReference(Fact, frozen=True):
    """The Gateway or ListenerSet, and maybe its listener by name and port, to which a route attaches."""

    group: str = GROUP
    kind: str = "Gateway"
    namespace: str | None = None
    name: str = ""
    section_name: str | None = None
    port: int | None = None


class ParentGateway(Fact, frozen=True):
    """The Gateway of a ListenerSet."""

    group: str = GROUP
    kind: str = "Gateway"
    namespace: str | None = None
    name: str = ""


class ListenerSetSpec(Fact, frozen=True):
    """Listeners that are added to those of a Gateway."""

    parent_ref: ParentGateway = ParentGateway()
    listeners: tuple[GatewayListener, ...] = ()


class ListenerSetStatus(Fact, frozen=True):
    """What the controller says about a ListenerSet."""

    conditions: tuple[Condition, ...] = ()
    listeners: tuple[ListenerStatus, ...] = ()


class ListenerSet(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` ListenerSet."""

    api_version: str = API_VERSION
    kind: str = "ListenerSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ListenerSetSpec = ListenerSetSpec()
    status: ListenerSetStatus = ListenerSetStatus()


class HttpPathMatch(Fact, frozen=True):
    """``type`` is Exact, PathPrefix or RegularExpression."""

    type: str = "PathPrefix"
    value: str = "/"


class HttpValueMatch(Fact, frozen=True):
    """A header or query parameter; ``type`` is Exact or RegularExpression."""

    type: str = "Exact"
    name: str = ""
    value: str = ""


class HttpRouteMatch(Fact, frozen=True):
    """What a request must have, all of it."""

    path: HttpPathMatch = HttpPathMatch()
    headers: tuple[HttpValueMatch, ...] = ()
    query_params: tuple[HttpValueMatch, ...] = ()
    method: str | None = None


class HttpHeader(Fact, frozen=True):
    """A header and its value."""

    name: str = ""
    value: str = ""


class HttpHeaderFilter(Fact, frozen=True):
    """Headers that are set, added and removed."""

    set: tuple[HttpHeader, ...] = ()
    add: tuple[HttpHeader, ...] = ()
    remove: tuple[str, ...] = ()


class HttpPathModifier(Fact, frozen=True):
    """``type`` is ReplaceFullPath or ReplacePrefixMatch, with the field of that name."""

    type: str = ""
    replace_full_path: str = ""
    replace_prefix_match: str = ""


class HttpRedirectFilter(Fact, frozen=True):
    """The client is sent elsewhere; what is absent stays as in the request."""

    scheme: str | None = None
    hostname: str | None = None
    path: HttpPathModifier | None = None
    port: int | None = None
    status_code: int = 302


class HttpRewriteFilter(Fact, frozen=True):
    """The host and path that a backend gets."""

    hostname: str | None = None
    path: HttpPathModifier | None = None


class BackendReference(Fact, frozen=True):
    """An object that takes requests; an empty group is the core group."""

    group: str = ""
    kind: str = "Service"
    name: str = ""
    namespace: str | None = None
    port: int | None = None


class MirrorFraction(Fact, frozen=True):
    """A share of the requests."""

    numerator: int = 0
    denominator: int = 100


class HttpMirrorFilter(Fact, frozen=True):
    """A backend that gets copies of requests; neither percent nor fraction means all of them."""

    backend_ref: BackendReference = BackendReference()
    percent: int | None = None
    fraction: MirrorFraction | None = None


class HttpCorsFilter(Fact, frozen=True):
    """Which origins may read answers; ``max_age`` is in seconds."""

    allow_origins: tuple[str, ...] = ()
    allow_credentials: bool = False
    allow_methods: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    max_age: int = 5


class HttpRouteFilter(Fact, frozen=True):
    """A filter; ``type`` names the field that is set. Other types than these are refused."""

    type: str = ""
    request_header_modifier: HttpHeaderFilter | None = None
    response_header_modifier: HttpHeaderFilter | None = None
    request_redirect: HttpRedirectFilter | None = None
    url_rewrite: HttpRewriteFilter | None = None
    request_mirror: HttpMirrorFilter | None = None
    cors: HttpCorsFilter | None = None


class HttpBackendRef(BackendReference, frozen=True):
    """A backend with its share of the requests and the filters for those."""

    weight: int = 1
    filters: tuple[HttpRouteFilter, ...] = ()


class HttpRouteTimeouts(Fact, frozen=True):
    """Durations such as ``10s`` or ``1m30s``; ``0s`` is no limit."""

    request: str | None = None
    backend_request: str | None = None


class HttpRouteRetry(Fact, frozen=True):
    """When a request is sent again: on these status codes and when the connection fails."""

    codes: tuple[int, ...] = ()
    attempts: int | None = None
    backoff: str | None = None


class SessionCookie(Fact, frozen=True):
    """The cookie of a session; ``lifetime_type`` is Session or Permanent."""

    lifetime_type: str = "Session"


class SessionPersistence(Fact, frozen=True):
    """How requests of a session keep their endpoint; ``type`` is Cookie or Header."""

    session_name: str = ""
    type: str = "Cookie"
    absolute_timeout: str | None = None
    idle_timeout: str | None = None
    cookie_config: SessionCookie = SessionCookie()


class HttpRouteRule(Fact, frozen=True):
    """Requests that have one of the matches, and what happens to them."""

    name: str | None = None
    matches: tuple[HttpRouteMatch, ...] = ()
    filters: tuple[HttpRouteFilter, ...] = ()
    backend_refs: tuple[HttpBackendRef, ...] = ()
    timeouts: HttpRouteTimeouts | None = None
    retry: HttpRouteRetry | None = None
    session_persistence: SessionPersistence | None = None


class HttpRouteSpec(Fact, frozen=True):
    """What a route asks for; without rules it is one rule with neither matches nor backends."""

    parent_refs: tuple[ParentReference, ...] = ()
    hostnames: tuple[str, ...] = ()
    rules: tuple[HttpRouteRule, ...] = ()


class RouteParentStatus(Fact, frozen=True):
    """What one controller says about a route at one parent."""

    parent_ref: ParentReference = ParentReference()
    controller_name: str = ""
    conditions: tuple[Condition, ...] = ()


class HttpRouteStatus(Fact, frozen=True):
    """What controllers say about a route."""

    parents: tuple[RouteParentStatus, ...] = ()


class HttpRoute(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` HTTPRoute."""

    api_version: str = API_VERSION
    kind: str = "HTTPRoute"
    metadata: ObjectMeta = ObjectMeta()
    spec: HttpRouteSpec = HttpRouteSpec()
    status: HttpRouteStatus = HttpRouteStatus()


class GrantFrom(Fact, frozen=True):
    """The kind and namespace of objects that may refer."""

    group: str = ""
    kind: str = ""
    namespace: str = ""


class GrantTo(Fact, frozen=True):
    """The kind of objects that may be referred to; no name means all of them."""

    group: str = ""
    kind: str = ""
    name: str | None = None


class ReferenceGrantSpec(Fact, frozen=True):
    """Who may refer to which objects of the namespace of the grant."""

    origins: tuple[GrantFrom, ...] = msgspec.field(default=(), name="from")
    to: tuple[GrantTo, ...] = ()


class ReferenceGrant(Fact, frozen=True):
    """``gateway.networking.k8s.io/v1`` ReferenceGrant."""

    api_version: str = API_VERSION
    kind: str = "ReferenceGrant"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReferenceGrantSpec = ReferenceGrantSpec()

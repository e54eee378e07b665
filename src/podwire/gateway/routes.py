"""The route model: what an L7 entry serves, as values, whatever kind of object asked for it.

Ingress and Gateway API are translated into an :class:`GatewayEntry`; the engine's configuration is made from it, and
:mod:`podwire.gateway.matching` says which route a request takes. An entry has listeners (a port and its TLS settings),
which name route tables; a table has virtual hosts, each with routes in order of precedence; a route's action names
backends by key. Connections and datagrams that are not HTTP go to a stream target, which names backends too. Each route
carries its ``source``, the object and field that it comes from.

Durations are in seconds; an absent one (None) means the default of the engine's configuration, 0 means no limit.
"""

from typing import Literal

import msgspec

PathKind = Literal["exact", "prefix", "regex"]
"""``prefix`` compares whole path elements; ``regex`` is RE2 syntax and must match the whole path."""


class EntryValue(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The settings of every struct of the route model."""


class PathMatch(EntryValue, frozen=True):
    """A path without its query."""

    kind: PathKind = "prefix"
    path: str = "/"
    ignore_case: bool = False


class ValueMatch(EntryValue, frozen=True):
    """A header or query parameter by name; kind ``present`` takes any value."""

    name: str
    kind: Literal["exact", "regex", "present"] = "exact"
    value: str = ""


class RequestMatch(EntryValue, frozen=True):
    """What a request must have, all of it; an empty ``method`` is any."""

    path: PathMatch = PathMatch()
    method: str = ""
    headers: tuple[ValueMatch, ...] = ()
    query: tuple[ValueMatch, ...] = ()


class HeaderChanges(EntryValue, frozen=True):
    """Headers that are set, added and removed; names and values."""

    set: tuple[tuple[str, str], ...] = ()
    add: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


class WeightedBackend(EntryValue, frozen=True):
    """A backend by its key, its share of the requests, and what changes on the way to it.

    A key that the entry does not have makes its share of the requests an answer with ``missing_status``.
    """

    key: str
    weight: int = 1
    missing_status: int = 500
    request_headers: HeaderChanges = HeaderChanges()
    response_headers: HeaderChanges = HeaderChanges()


class PathRewrite(EntryValue, frozen=True):
    """The path that a backend gets.

    ``full`` replaces the whole path, ``prefix`` the matched prefix, in ``regex``, ``\\1`` stands for a group of
    ``pattern``.
    """

    kind: Literal["full", "prefix", "regex"]
    replacement: str
    pattern: str = ""


class Retry(EntryValue, frozen=True):
    """When a request is sent again, and how often; ``on_reset`` also when the endpoint may have acted on it."""

    attempts: int = 1
    on_codes: tuple[int, ...] = ()
    on_connection_error: bool = True
    on_reset: bool = False
    backoff: float | None = None


class Mirror(EntryValue, frozen=True):
    """A backend that gets a copy of requests, with another host if one is named; its answers are thrown away."""

    key: str
    host: str = ""
    numerator: int = 100
    denominator: int = 100


class Cookie(EntryValue, frozen=True):
    """The cookie that keeps a client at one endpoint; ``ttl`` None makes it a session cookie."""

    name: str
    path: str = "/"
    ttl: float | None = None
    attributes: tuple[tuple[str, str], ...] = ()


class Session(EntryValue, frozen=True):
    """The cookie or header that names the endpoint of a client; ``ttl`` None makes it a session cookie."""

    kind: Literal["cookie", "header"]
    name: str
    ttl: float | None = None


class Forward(EntryValue, frozen=True):
    """The request goes to one of the backends, by weight."""

    backends: tuple[WeightedBackend, ...]
    host: str = ""
    path: PathRewrite | None = None
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    mirrors: tuple[Mirror, ...] = ()
    cookie: Cookie | None = None
    session: Session | None = None
    hash_on: str = ""
    keeps_share: bool = False
    """Whether a client that the cookie or ``hash_on`` tells apart stays with its share of the backends, too."""


class HttpRedirect(EntryValue, frozen=True):
    """The client is sent elsewhere; what is empty stays as in the request."""

    status: int = 302
    scheme: str = ""
    host: str = ""
    port: int = 0
    path: PathRewrite | None = None
    location: str = ""
    """The whole URL; the other fields are empty then."""


class FixedAnswer(EntryValue, frozen=True):
    """An answer without a backend."""

    status: int
    body: str = ""


Action = Forward | HttpRedirect | FixedAnswer


class Cors(EntryValue, frozen=True):
    """Origins that may read answers; ``*`` in an origin stands for any text.

    With ``echo``, the method and headers that a browser asks for are named in place of ``*``. Without
    ``forward_others``, a preflight request of another origin is not forwarded.
    """

    origins: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    credentials: bool = False
    max_age: int | None = None
    echo: bool = False
    forward_others: bool = True


class BasicAuth(EntryValue, frozen=True):
    """Users in the form of htpasswd, with SHA-1 hashes; None is a Secret that cannot be read: no client gets access."""

    users: str | None
    realm: str = ""


class ExternalAuth(EntryValue, frozen=True):
    """A server that is asked about each request: 2xx lets it pass, 401 and 403 are the answer, all others become 500.

    It gets the request's headers without its body, and the URL as ``X-Original-URL``. The headers of its answer that
    ``response_headers`` names, in lower case, replace those of the request. With ``signin``, 401 becomes a redirect
    there, with the URL in ``redirect_parameter``.
    """

    backend: str
    host: str
    path: str = "/"
    method: str = ""
    response_headers: tuple[str, ...] = ()
    signin: str = ""
    redirect_parameter: str = "rd"


class RequestRate(EntryValue, frozen=True):
    """A bucket of each client's address: ``burst`` requests, and ``requests`` more in each interval.

    What is over it gets ``status``. Addresses of ``exempt`` are not counted.
    """

    requests: int
    interval: float = 1
    burst: int = 1
    status: int = 503
    exempt: tuple[str, ...] = ()


class RouteLimits(EntryValue, frozen=True):
    """What a request must pass before its action; CIDRs are compared with the client's address.

    With ``server_names``, only connections of TLS with one of these names may ask. A request waits until its body is
    there, up to ``body_bytes``; with ``body_streams`` it does not, and is refused for its Content-Length alone.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    server_names: tuple[str, ...] = ()
    cors: Cors | None = None
    basic_auth: BasicAuth | None = None
    external_auth: ExternalAuth | None = None
    body_bytes: int = 0
    body_streams: bool = False
    rate: RequestRate | None = None


class ErrorAnswers(EntryValue, frozen=True):
    """The backend whose answer takes the place of an answer with one of these statuses.

    It is asked for ``/`` of the same host with GET, with the status in ``X-Code``, the path in ``X-Original-URI``, what
    the client accepts in ``X-Format``, and ``headers``. While it has no answer (503), the first one stays.
    """

    backend: str
    statuses: tuple[int, ...]
    headers: tuple[tuple[str, str], ...] = ()


class EntryRoute(EntryValue, frozen=True):
    """One route; ``source`` is the object and field it comes from (``Ingress shop/web spec.rules[0]``).

    ``tells_client`` tells the backend of the client's certificate: its subject and issuer, or the whole of it, too.
    """

    source: str
    match: RequestMatch
    action: Action
    limits: RouteLimits = RouteLimits()
    request_headers: HeaderChanges = HeaderChanges()
    response_headers: HeaderChanges = HeaderChanges()
    tells_client: Literal["", "subject", "certificate"] = ""
    errors: ErrorAnswers | None = None


class VirtualHost(EntryValue, frozen=True):
    """The routes of hosts, in order of precedence; the first that matches decides.

    ``hosts`` are lower-case names, names with the first label ``*``, or ``*`` for all. With ``single_label`` the ``*``
    stands for exactly one label, as in Ingress; without it, for one or more, as in Gateway API.
    """

    hosts: tuple[str, ...]
    routes: tuple[EntryRoute, ...]
    single_label: bool = False


class RouteTable(EntryValue, frozen=True):
    """The virtual hosts behind a listener. ``fallback`` answers requests for which there is none, and for no route."""

    name: str
    hosts: tuple[VirtualHost, ...]
    fallback: int = 404


class StreamTarget(EntryValue, frozen=True):
    """Where connections or datagrams go: to one of the backends, by weight. A backend that is missing gets nothing."""

    source: str
    backends: tuple[WeightedBackend, ...] = ()


class ClientValidation(EntryValue, frozen=True):
    """The authority of clients' certificates; where it is not ``required``, any certificate or none will do.

    ``depth`` is how many authorities may stand between it and a certificate; None for any number.
    """

    authority: str
    required: bool = True
    depth: int | None = None


class TlsServer(EntryValue, frozen=True):
    """Server names (empty: all others) and what happens to their connections.

    Requests use the ``table``; with a ``stream``, connections are not read as HTTP. Without certificates, TLS is left
    to the backend.
    """

    names: tuple[str, ...]
    certificates: tuple[str, ...] = ()
    table: str = ""
    stream: StreamTarget | None = None
    clients: ClientValidation | None = None


class EntryListener(EntryValue, frozen=True):
    """A port of an entry. HTTP has a table; HTTPS has servers by name; TCP and UDP have a stream.

    ``client_port`` is the port that clients use, where something in front translates it; 0 is the same port.
    ``sources`` are the objects whose listeners it serves; without one, those of its routes.
    """

    name: str
    port: int
    protocol: Literal["HTTP", "HTTPS", "TCP", "UDP"]
    client_port: int = 0
    table: str = ""
    servers: tuple[TlsServer, ...] = ()
    stream: StreamTarget | None = None
    sources: tuple[str, ...] = ()


class EntryEndpoint(EntryValue, frozen=True):
    """One endpoint."""

    address: str
    port: int


class BackendTls(EntryValue, frozen=True):
    """TLS to a backend: the server name, the authority of its certificate, and the names of which that has one.

    ``names`` are host names, ``uris`` URIs. ``certificate`` is shown to the backend. Without an authority, no
    certificate is checked.
    """

    server_name: str
    authority: str
    names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    certificate: str = ""


class EntryBackend(EntryValue, frozen=True):
    """The endpoints of a Service port. The key is ``namespace/service:port``, with ``#`` and a variant where needed.

    With ``fixed``, the endpoints do not follow the Service; with ``dns``, the address of the only one is a name that
    the engine resolves, again and again. With ``health_path``, endpoints get requests only while they answer 200 there.
    ``tls`` alone speaks TLS without a check of the certificate; ``verify`` says what is checked. A backend with
    ``shares`` has the endpoints of other backends, by weight; with ``first_of``, it is the first of other backends that
    has endpoints. ``header_kb`` is the size of the headers of answers, 0 for the engine's own limit.
    """

    key: str
    endpoints: tuple[EntryEndpoint, ...] = ()
    protocol: Literal["http", "h2c", "tcp", "udp"] = "http"
    tls: bool = False
    verify: BackendTls | None = None
    shares: tuple[WeightedBackend, ...] = ()
    first_of: tuple[str, ...] = ()
    header_kb: int = 0
    connect_timeout: float = 5
    balance: Literal["round_robin", "least_request", "ring_hash"] = "round_robin"
    fixed: bool = False
    dns: bool = False
    health_path: str = ""


class Certificate(EntryValue, frozen=True):
    """A certificate chain and its key in PEM form."""

    name: str
    chain: str
    key: str = ""


class TrustedAuthority(EntryValue, frozen=True):
    """Certificates of authorities in PEM form."""

    name: str
    chain: str


class GatewayEntry(EntryValue, frozen=True):
    """Everything that one set of engines serves."""

    listeners: tuple[EntryListener, ...] = ()
    tables: dict[str, RouteTable] = {}
    backends: dict[str, EntryBackend] = {}
    certificates: dict[str, Certificate] = {}
    authorities: dict[str, TrustedAuthority] = {}

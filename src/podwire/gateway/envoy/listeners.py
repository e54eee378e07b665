"""Listeners as Envoy's JSON: ports, TLS by server name, and the filters that every request passes."""

from podwire.gateway.envoy.access import request_logs
from podwire.gateway.envoy.clusters import ADS, Json, duration, secret_source, typed
from podwire.gateway.envoy.headcheck import head_check_filter
from podwire.gateway.envoy.scripts import CORS_ANSWER, ERROR_ANSWERS, EXTERNAL_AUTH, FIRST_HOST, script_filter
from podwire.gateway.envoy.settings import REPEAT_HEADER, EngineSettings, GzipSettings
from podwire.gateway.envoy.streams import stream_filter, udp_listener
from podwire.gateway.envoy.tables import table_resource
from podwire.gateway.routes import EntryListener, TlsServer

_HTTP_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_NOBODY = "-:{SHA}" + "A" * 27 + "="
"""A user whose hash belongs to no known password; the filter wants one even where it is off."""
_CHALLENGE: Json = {
    "filter": {
        "andFilter": {
            "filters": [
                {
                    "statusCodeFilter": {
                        "comparison": {"op": "EQ", "value": {"defaultValue": 401, "runtimeKey": "gateway.challenge"}}
                    }
                },
                {
                    "metadataFilter": {
                        "matcher": {
                            "filter": "podwire.io",
                            "path": [{"key": "external"}],
                            "value": {"boolMatch": False},
                        },
                        "matchIfKeyNotFound": True,
                    }
                },
            ]
        }
    },
    "headersToAdd": [
        {
            "header": {"key": "www-authenticate", "value": 'Basic realm="%METADATA(ROUTE:podwire.io:realm)%"'},
            "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
    ],
}
"""The realm of a route stands in its metadata, since the filter for basic authentication has none.

The answer of another server (``external``) has a challenge of its own.
"""
_BODY_LIMIT: Json = {
    "name": "body-limit",
    "typedConfig": typed("envoy.extensions.filters.http.buffer.v3.Buffer", maxRequestBytes=1),
    "disabled": True,
}
"""Holds a request until its body has come, which that of a WebSocket never does: those go past it."""
_IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
"""Methods that a client may repeat without knowing whether the first request arrived (RFC 9110, section 9.2.2)."""
_REPEATED = f'%CEL(request.method in {list(_IDEMPOTENT)} ? "reset" : "connect-failure")%'.replace("'", '"')
"""When a request is repeated beside what its route says. One route serves all methods so: two cost twice as much."""
_PROXY_PROTOCOL = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"
_TLS_INSPECTOR = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"


def listener(value: EntryListener, settings: EngineSettings) -> Json:
    """A Listener; HTTPS has a chain of filters for each server."""
    if value.protocol == "UDP":
        return udp_listener(value, _address(value.port, settings, "UDP"))
    result: Json = {
        "name": value.name,
        "address": _address(value.port, settings),
        "perConnectionBufferLimitBytes": settings.connection_buffer_bytes,
        "tcpBacklogSize": 4096,
        "listenerFiltersTimeout": "10s",
    }
    inspectors = [_PROXY_PROTOCOL] if settings.proxy_protocol else []
    inspectors += [_TLS_INSPECTOR] if value.protocol == "HTTPS" else []
    if inspectors:
        result["listenerFilters"] = [_listener_filter(message) for message in inspectors]
    if value.protocol == "HTTP":
        chain = {"name": value.name, "filters": [head_check_filter(), _http_filter(value.table, value, settings)]}
        return result | {"filterChains": [chain]}
    if value.protocol == "TCP":
        chain = {"name": value.name, "filters": [stream_filter(value.name, value.stream, settings)]}
        return result | {"filterChains": [chain], "statPrefix": "stream"}
    if any(server.stream is not None for server in value.servers):
        result["statPrefix"] = "stream"
    tables = {server.table for server in value.servers if server.stream is None}
    http = {table: _http_filter(table, value, settings) for table in tables}
    result["filterChains"] = [
        _tls_chain(value, server, settings, http) for server in value.servers if _is_named(server)
    ]
    default = next((server for server in value.servers if not _is_named(server)), None)
    if default is not None:
        result["defaultFilterChain"] = _tls_chain(value, default, settings, http)
    return result


def _is_named(server: TlsServer) -> bool:
    """Whether a server has a match of its own; passed through for all names, it takes TLS alone."""
    return bool(server.names) or not server.certificates


def _address(port: int, settings: EngineSettings, protocol: str = "TCP") -> Json:
    address: Json = {"address": settings.listen_address, "portValue": port, "protocol": protocol}
    if ":" in settings.listen_address:
        address["ipv4Compat"] = True
    return {"socketAddress": address}


def _listener_filter(message: str) -> Json:
    return {"name": message.rsplit(".", 1)[-1], "typedConfig": typed(message)}


def _tls_chain(value: EntryListener, server: TlsServer, settings: EngineSettings, http: dict[str, Json]) -> Json:
    """A chain of filters; ``http`` has those that read requests, by table."""
    name = f"{value.name} {','.join(server.names) or 'default'}"
    stream = server.stream
    filters = [stream_filter(name, stream, settings)] if stream else [head_check_filter(), http[server.table]]
    chain: Json = {"name": name, "filters": filters}
    if server.certificates:
        chain["transportSocket"] = _server_tls(server, settings)
    if server.names:
        chain["filterChainMatch"] = {"serverNames": list(server.names)}
    elif not server.certificates:
        chain["filterChainMatch"] = {"transportProtocol": "tls"}
    return chain


def _server_tls(server: TlsServer, settings: EngineSettings) -> Json:
    context: Json = {
        "tlsParams": {"tlsMinimumProtocolVersion": settings.tls_minimum, "tlsMaximumProtocolVersion": "TLSv1_3"},
        "tlsCertificateSdsSecretConfigs": [secret_source(name) for name in server.certificates],
    }
    if server.stream is None:
        context["alpnProtocols"] = ["h2", "http/1.1"] if settings.http2 else ["http/1.1"]
    message: Json = {"commonTlsContext": context}
    clients = server.clients
    if clients is not None:
        trust = "VERIFY_TRUST_CHAIN" if clients.required else "ACCEPT_UNTRUSTED"
        depth = {} if clients.depth is None else {"maxVerifyDepth": clients.depth}
        message["requireClientCertificate"] = clients.required
        context["combinedValidationContext"] = {
            "defaultValidationContext": {"trustChainVerification": trust, **depth},
            "validationContextSdsSecretConfig": secret_source(clients.authority),
        }
    return {
        "name": "envoy.transport_sockets.tls",
        "typedConfig": typed("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", **message),
    }


def _http_filter(table: str, value: EntryListener, settings: EngineSettings) -> Json:
    scheme = "https" if value.protocol == "HTTPS" else "http"
    client_port = value.client_port or value.port
    filters = _filters(settings)
    manager = typed(
        _HTTP_MANAGER,
        statPrefix=value.name,
        rds={"routeConfigName": table_resource(table), "configSource": ADS},
        httpFilters=filters,
        commonHttpProtocolOptions={
            "idleTimeout": duration(settings.idle_timeout),
            "headersWithUnderscoresAction": "DROP_HEADER",
        },
        http2ProtocolOptions={
            "maxConcurrentStreams": settings.max_streams,
            "initialStreamWindowSize": 65536,
            "initialConnectionWindowSize": 1048576,
        },
        httpProtocolOptions={"allowAbsoluteUrl": True},
        requestHeadersTimeout=duration(settings.header_timeout),
        streamIdleTimeout=duration(settings.stream_idle_timeout),
        requestTimeout=duration(settings.request_timeout),
        maxRequestHeadersKb=settings.max_header_kb,
        drainTimeout="5s",
        normalizePath=True,
        mergeSlashes=True,
        pathWithEscapedSlashesAction="KEEP_UNCHANGED",
        stripTrailingHostDot=True,
        serverName="podwire",
        preserveExternalRequestId=True,
        upgradeConfigs=[{"upgradeType": "websocket", "filters": [entry for entry in filters if entry != _BODY_LIMIT]}],
        accessLog=request_logs(settings),
        localReplyConfig={"mappers": [_CHALLENGE]},
        **_client_address(settings, scheme, client_port),
    )
    return {"name": "envoy.filters.network.http_connection_manager", "typedConfig": manager}


def _client_address(settings: EngineSettings, scheme: str, port: int) -> Json:
    """How the client's address and the ``X-Forwarded-*`` headers are found.

    Without trusted proxies they are those of the connection; what the client sent in ``X-Forwarded-For`` stays in
    ``X-Original-Forwarded-For``.
    """
    fixed = {
        "x-forwarded-host": "%REQ(:authority)%",
        "x-forwarded-port": str(port),
        "x-forwarded-scheme": scheme,
        "x-scheme": scheme,
    }
    if settings.trusted_networks:
        action = "ADD_IF_ABSENT" if settings.believes_headers else "OVERWRITE_IF_EXISTS_OR_ADD"
        fixed |= {} if settings.believes_headers else {"x-forwarded-proto": scheme}
        mutations = [*_forwarded_for(settings), *(_header(name, text, action) for name, text in fixed.items())]
        detection = typed(
            "envoy.extensions.http.original_ip_detection.xff.v3.XffConfig",
            xffTrustedCidrs={"cidrs": [_network(network) for network in settings.trusted_networks]},
            skipXffAppend=not settings.append_forwarded_for,
        )
        options: Json = {
            "useRemoteAddress": False,
            "originalIpDetectionExtensions": [{"name": "xff", "typedConfig": detection}],
        }
    else:
        mutations = [
            _header("x-original-forwarded-for", "%REQ(X-FORWARDED-FOR)%", "OVERWRITE_IF_EXISTS_OR_ADD"),
            {"remove": "x-forwarded-for"},
            *(_header(name, text, "OVERWRITE_IF_EXISTS_OR_ADD") for name, text in fixed.items()),
        ]
        options = {"useRemoteAddress": True}
    early = typed("envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation", mutations=mutations)
    return options | {"earlyHeaderMutationExtensions": [{"name": "forwarded", "typedConfig": early}]}


def _forwarded_for(settings: EngineSettings) -> list[Json]:
    """Takes the addresses of the proxies in front from the header that has them."""
    name = settings.forwarded_for_header
    if name.lower() == "x-forwarded-for":
        return []
    text = f"%REQ({name.upper()})%"
    return [{"remove": "x-forwarded-for"}, _header("x-forwarded-for", text, "OVERWRITE_IF_EXISTS_OR_ADD")]


def _header(name: str, text: str, action: str) -> Json:
    return {"append": {"header": {"key": name, "value": text}, "appendAction": action}}


def _network(network: str) -> Json:
    address, _, length = network.partition("/")
    return {"addressPrefix": address, "prefixLen": int(length)}


def _filters(settings: EngineSettings) -> list[Json]:
    """The filters of a request, in order. All but the last are off, and on where a route has settings for them."""
    prefix = "envoy.extensions.filters.http."
    address = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
    names = ["x-real-ip"]
    if settings.trusted_networks and not settings.believes_headers:
        names.append("x-forwarded-for")
    compressor = [_compressor(settings.gzip)] if settings.gzip is not None else []
    first_host = [script_filter(FIRST_HOST, always=True)] if settings.trusted_networks else []
    return [
        script_filter(ERROR_ANSWERS),
        *first_host,
        _off("source-ranges", typed(f"{prefix}rbac.v3.RBAC")),
        script_filter(CORS_ANSWER),
        _off("cors", typed(f"{prefix}cors.v3.Cors"), always=True),
        _off("basic-auth", typed(f"{prefix}basic_auth.v3.BasicAuth", users={"inlineString": _NOBODY})),
        _off("rate-limit", typed(f"{prefix}local_ratelimit.v3.LocalRateLimit", statPrefix="rate_limit"), always=True),
        script_filter(EXTERNAL_AUTH),
        _off("session", typed(f"{prefix}stateful_session.v3.StatefulSession")),
        *compressor,
        _BODY_LIMIT,
        {
            "name": "client-address",
            "typedConfig": typed(
                f"{prefix}header_mutation.v3.HeaderMutation",
                mutations={
                    "requestMutations": [
                        *(_header(name, address, "OVERWRITE_IF_EXISTS_OR_ADD") for name in names),
                        _header(REPEAT_HEADER, _REPEATED, "OVERWRITE_IF_EXISTS_OR_ADD"),
                    ]
                },
            ),
        },
        {
            "name": "envoy.filters.http.router",
            "typedConfig": typed(f"{prefix}router.v3.Router", suppressEnvoyHeaders=True),
        },
    ]


def _compressor(gzip: GzipSettings) -> Json:
    """Compresses answers for clients that accept it."""
    library = typed(
        "envoy.extensions.compression.gzip.compressor.v3.Gzip", compressionLevel=f"COMPRESSION_LEVEL_{gzip.level}"
    )
    common = {"minContentLength": max(gzip.minimum, 30), "contentType": ["text/html", *gzip.types]}
    return {
        "name": "compressor",
        "typedConfig": typed(
            "envoy.extensions.filters.http.compressor.v3.Compressor",
            compressorLibrary={"name": "gzip", "typedConfig": library},
            responseDirectionConfig={"commonConfig": common},
        ),
    }


def _off(name: str, config: Json, *, always: bool = False) -> Json:
    return {"name": name, "typedConfig": config, **({} if always else {"disabled": True})}

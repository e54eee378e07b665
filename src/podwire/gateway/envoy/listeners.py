"""Listeners as Envoy's JSON: ports, TLS by server name, and the filters that every request passes."""

from podwire.gateway.envoy.clusters import ADS, Json, duration, typed
from podwire.gateway.envoy.externalauth import external_auth_filter
from podwire.gateway.envoy.settings import EngineSettings
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
_FIRST_HOST = typed(
    "envoy.extensions.filters.http.lua.v3.Lua",
    defaultSourceCode={
        "inlineString": """
function envoy_on_request(handle)
  local hosts = handle:headers():get("x-forwarded-host")
  local first = hosts and hosts:match("^%s*([^,]-)%s*,")
  if first then
    handle:headers():replace("x-forwarded-host", first)
  end
end
"""
    },
)
"""Of several hosts that trusted proxies name, the first is the one that the client asked for."""
_BODY_LIMIT: Json = {
    "name": "body-limit",
    "typedConfig": typed("envoy.extensions.filters.http.buffer.v3.Buffer", maxRequestBytes=1),
    "disabled": True,
}
"""Holds a request until its body has come, which that of a WebSocket never does: those go past it."""
_PROXY_PROTOCOL = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"
_TLS_INSPECTOR = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"


def listener(value: EntryListener, settings: EngineSettings) -> Json:
    """A Listener; HTTPS has a chain of filters for each certificate."""
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
        chain = {"name": value.name, "filters": [_http_filter(value.table, value, settings)]}
        return result | {"filterChains": [chain]}
    result["filterChains"] = [_tls_chain(value, server, settings) for server in value.servers if server.names]
    default = next((server for server in value.servers if not server.names), None)
    if default is not None:
        result["defaultFilterChain"] = _tls_chain(value, default, settings)
    return result


def _address(port: int, settings: EngineSettings) -> Json:
    address: Json = {"address": settings.listen_address, "portValue": port}
    if ":" in settings.listen_address:
        address["ipv4Compat"] = True
    return {"socketAddress": address}


def _listener_filter(message: str) -> Json:
    return {"name": message.rsplit(".", 1)[-1], "typedConfig": typed(message)}


def _tls_chain(value: EntryListener, server: TlsServer, settings: EngineSettings) -> Json:
    chain: Json = {
        "name": f"{value.name} {','.join(server.names) or 'default'}",
        "transportSocket": _server_tls(server, settings),
        "filters": [_http_filter(server.table, value, settings)],
    }
    if server.names:
        chain["filterChainMatch"] = {"serverNames": list(server.names)}
    return chain


def _server_tls(server: TlsServer, settings: EngineSettings) -> Json:
    context: Json = {
        "tlsParams": {"tlsMinimumProtocolVersion": settings.tls_minimum, "tlsMaximumProtocolVersion": "TLSv1_3"},
        "tlsCertificateSdsSecretConfigs": [{"name": name, "sdsConfig": ADS} for name in server.certificates],
        "alpnProtocols": ["h2", "http/1.1"] if settings.http2 else ["http/1.1"],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typedConfig": typed(
            "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", commonTlsContext=context
        ),
    }


def _http_filter(table: str, value: EntryListener, settings: EngineSettings) -> Json:
    scheme = "https" if value.protocol == "HTTPS" else "http"
    client_port = value.client_port or value.port
    filters = _filters(settings)
    manager = typed(
        _HTTP_MANAGER,
        statPrefix=value.name,
        rds={"routeConfigName": table, "configSource": ADS},
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
        upgradeConfigs=[{"upgradeType": "websocket", "filters": [entry for entry in filters if entry != _BODY_LIMIT]}],
        accessLog=[_access_log(settings)],
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
        mutations = [_header(name, text, "ADD_IF_ABSENT") for name, text in fixed.items()]
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


def _header(name: str, text: str, action: str) -> Json:
    return {"append": {"header": {"key": name, "value": text}, "appendAction": action}}


def _network(network: str) -> Json:
    address, _, length = network.partition("/")
    return {"addressPrefix": address, "prefixLen": int(length)}


def _filters(settings: EngineSettings) -> list[Json]:
    """The filters of a request, in order. All but the last are off, and on where a route has settings for them."""
    prefix = "envoy.extensions.filters.http."
    first_host = [{"name": "first-forwarded-host", "typedConfig": _FIRST_HOST}] if settings.trusted_networks else []
    return [
        *first_host,
        _off("source-ranges", typed(f"{prefix}rbac.v3.RBAC")),
        _off("cors", typed(f"{prefix}cors.v3.Cors"), always=True),
        _off("basic-auth", typed(f"{prefix}basic_auth.v3.BasicAuth", users={"inlineString": _NOBODY})),
        _off("rate-limit", typed(f"{prefix}local_ratelimit.v3.LocalRateLimit", statPrefix="rate_limit"), always=True),
        external_auth_filter(),
        _BODY_LIMIT,
        {
            "name": "client-address",
            "typedConfig": typed(
                f"{prefix}header_mutation.v3.HeaderMutation",
                mutations={
                    "requestMutations": [
                        _header("x-real-ip", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "OVERWRITE_IF_EXISTS_OR_ADD")
                    ]
                },
            ),
        },
        {
            "name": "envoy.filters.http.router",
            "typedConfig": typed(f"{prefix}router.v3.Router", suppressEnvoyHeaders=True),
        },
    ]


def _off(name: str, config: Json, *, always: bool = False) -> Json:
    return {"name": name, "typedConfig": config, **({} if always else {"disabled": True})}


def _access_log(settings: EngineSettings) -> Json:
    fields = {
        "time": "%START_TIME%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "method": "%REQ(:METHOD)%",
        "scheme": "%REQ(X-FORWARDED-PROTO)%",
        "host": "%REQ(:AUTHORITY)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "route": "%ROUTE_NAME%",
        "backend": "%UPSTREAM_CLUSTER%",
        "endpoint": "%UPSTREAM_HOST%",
        "received_bytes": "%BYTES_RECEIVED%",
        "sent_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "user_agent": "%REQ(USER-AGENT)%",
    }
    return {
        "name": "access",
        "typedConfig": typed(
            "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            path=settings.access_log,
            logFormat={"jsonFormat": fields},
        ),
    }

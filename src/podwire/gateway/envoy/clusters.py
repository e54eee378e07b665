"""Clusters and endpoints of Envoy from the backends of an entry, as JSON values of its API (v3)."""

from typing import Any

from podwire.gateway.routes import EntryBackend

Json = dict[str, Any]

TYPE_PREFIX = "type.googleapis.com/"
ADS: Json = {"ads": {}, "resourceApiVersion": "V3"}
"""Where a resource comes from: the stream that all come from."""
_BALANCE = {"round_robin": "ROUND_ROBIN", "least_request": "LEAST_REQUEST", "ring_hash": "RING_HASH"}
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def typed(name: str, **fields: Any) -> Json:
    """A value with the name of its message."""
    return {"@type": TYPE_PREFIX + name, **fields}


def duration(seconds: float) -> str:
    """A duration as Envoy reads it."""
    return f"{seconds:g}s"


def cluster(backend: EntryBackend) -> Json:
    """The cluster of a backend; its endpoints follow it by their own resource.

    An endpoint that refuses connections or fails five times in a row gets no requests for a while. One bad endpoint
    never takes more than half of them out.
    """
    value: Json = {
        "name": backend.key,
        **_discovery(backend),
        "connectTimeout": duration(backend.connect_timeout),
        "lbPolicy": _BALANCE[backend.balance],
        "commonLbConfig": {"healthyPanicThreshold": {"value": 0}},
        "circuitBreakers": {
            "thresholds": [{"maxConnections": 10_000, "maxPendingRequests": 10_000, "maxRequests": 10_000}]
        },
        "outlierDetection": {
            "consecutive5xx": 1000,
            "consecutiveGatewayFailure": 5,
            "enforcingConsecutive5xx": 0,
            "enforcingConsecutiveGatewayFailure": 100,
            "enforcingSuccessRate": 0,
            "maxEjectionPercent": 50,
            "baseEjectionTime": "5s",
        },
    }
    if backend.health_path:
        value["healthChecks"] = [_health_check(backend)]
        value["ignoreHealthOnHostRemoval"] = True
    version = "http2ProtocolOptions" if backend.protocol == "h2c" else "httpProtocolOptions"
    options = typed(_HTTP_OPTIONS, explicitHttpConfig={version: {}})
    value["typedExtensionProtocolOptions"] = {_HTTP_OPTIONS: options}
    if backend.tls:
        value["transportSocket"] = _upstream_tls(backend.protocol)
    return value


def _health_check(backend: EntryBackend) -> Json:
    """Each engine asks each endpoint every five seconds, the first time at once; two failures take it out."""
    check: Json = {"path": backend.health_path, "host": backend.key.partition("#")[0]}
    if backend.protocol == "h2c":
        check["codecClientType"] = "HTTP2"
    return {
        "timeout": "2s",
        "interval": "5s",
        "noTrafficInterval": "5s",
        "unhealthyThreshold": 2,
        "healthyThreshold": 1,
        "httpHealthCheck": check,
    }


def _discovery(backend: EntryBackend) -> Json:
    """Where the endpoints come from: their own resource, or DNS."""
    if not backend.dns:
        return {"type": "EDS", "edsClusterConfig": {"edsConfig": ADS}}
    return {"type": "STRICT_DNS", "respectDnsTtl": True, "dnsRefreshRate": "30s", "loadAssignment": endpoints(backend)}


def endpoints(backend: EntryBackend) -> Json:
    """The endpoints of a backend."""
    entries = [
        {"endpoint": {"address": {"socketAddress": {"address": endpoint.address, "portValue": endpoint.port}}}}
        for endpoint in backend.endpoints
    ]
    return {"clusterName": backend.key, "endpoints": [{"lbEndpoints": entries}] if entries else []}


def _upstream_tls(protocol: str) -> Json:
    """TLS without a check of the certificate, as ingress-nginx speaks it by default."""
    context = {"alpnProtocols": ["h2"] if protocol == "h2c" else ["http/1.1"]}
    return {
        "name": "envoy.transport_sockets.tls",
        "typedConfig": typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", commonTlsContext=context),
    }

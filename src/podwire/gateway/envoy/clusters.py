"""Clusters and endpoints of Envoy from the backends of an entry, as JSON values of its API (v3)."""

from collections.abc import Mapping
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


_LONGEST_S = 100 * 365 * 86_400.0
"""A hundred years: Envoy takes no duration above 292."""


def duration(seconds: float) -> str:
    """A duration as Envoy reads it: seconds with at most three decimals, never with an exponent."""
    return f"{min(seconds, _LONGEST_S):.3f}".rstrip("0").rstrip(".") + "s"


DISCARD = ("127.0.0.1", 9)
"""Where datagrams of a missing backend go: nothing listens there."""


def cluster(backend: EntryBackend) -> Json:
    """The cluster of a backend; its endpoints follow it by their own resource.

    An endpoint that refuses connections or fails five times in a row gets no requests for a while. One bad endpoint
    never takes more than half of them out.
    """
    if backend.first_of:
        return _first_of(backend)
    value: Json = {
        "name": backend.key,
        **_discovery(backend),
        "connectTimeout": duration(backend.connect_timeout),
        "lbPolicy": _BALANCE[backend.balance],
        "commonLbConfig": {"healthyPanicThreshold": {"value": 0}},
    }
    if backend.shares:
        value["commonLbConfig"]["localityWeightedLbConfig"] = {}
    if backend.protocol == "udp":
        return value
    value |= {
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
    if backend.health_path and backend.protocol != "tcp":
        value["healthChecks"] = [_health_check(backend)]
        value["ignoreHealthOnHostRemoval"] = True
    if backend.protocol != "tcp":
        version = "http2ProtocolOptions" if backend.protocol == "h2c" else "httpProtocolOptions"
        options = typed(_HTTP_OPTIONS, explicitHttpConfig={version: {}})
        if backend.header_kb:
            options["commonHttpProtocolOptions"] = {"maxResponseHeadersKb": backend.header_kb}
        value["typedExtensionProtocolOptions"] = {_HTTP_OPTIONS: options}
    if backend.tls or backend.verify is not None:
        value["transportSocket"] = _upstream_tls(backend)
    return value


def _first_of(backend: EntryBackend) -> Json:
    """A cluster that is the first of others with an endpoint."""
    members = typed("envoy.extensions.clusters.aggregate.v3.ClusterConfig", clusters=list(backend.first_of))
    return {
        "name": backend.key,
        "connectTimeout": duration(backend.connect_timeout),
        "lbPolicy": "CLUSTER_PROVIDED",
        "clusterType": {"name": "envoy.clusters.aggregate", "typedConfig": members},
    }


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
    fixed = endpoints(backend, {})
    return {"type": "STRICT_DNS", "respectDnsTtl": True, "dnsRefreshRate": "30s", "loadAssignment": fixed}


def endpoints(backend: EntryBackend, backends: Mapping[str, EntryBackend]) -> Json:
    """The endpoints of a backend; those of shares are localities with weights."""
    if not backend.shares:
        entries = _entries(backend)
        return {"clusterName": backend.key, "endpoints": [{"lbEndpoints": entries}] if entries else []}
    localities = []
    for number, share in enumerate(backend.shares):
        member = backends.get(share.key)
        entries = _entries(member) if member is not None else [_entry(*DISCARD)]
        if entries and share.weight:
            locality = {"locality": {"subZone": str(number)}, "loadBalancingWeight": share.weight}
            localities.append(locality | {"lbEndpoints": entries})
    return {"clusterName": backend.key, "endpoints": localities}


def _entries(backend: EntryBackend) -> list[Json]:
    return [_entry(endpoint.address, endpoint.port) for endpoint in backend.endpoints]


def _entry(address: str, port: int) -> Json:
    return {"endpoint": {"address": {"socketAddress": {"address": address, "portValue": port}}}}


def secret_source(name: str) -> Json:
    """Where a certificate or an authority comes from."""
    return {"name": name, "sdsConfig": ADS}


def _upstream_tls(backend: EntryBackend) -> Json:
    """TLS to a backend; without something to verify no certificate is checked, as ingress-nginx does by default."""
    context: Json = {"alpnProtocols": ["h2"] if backend.protocol == "h2c" else ["http/1.1"]}
    message: Json = {"commonTlsContext": context}
    verify = backend.verify
    if verify is not None:
        if verify.server_name:
            message["sni"] = verify.server_name
        names = [{"sanType": "DNS", "matcher": {"exact": name}} for name in verify.names]
        names += [{"sanType": "URI", "matcher": {"exact": uri}} for uri in verify.uris]
        if verify.authority:
            context["combinedValidationContext"] = {
                "defaultValidationContext": {"matchTypedSubjectAltNames": names},
                "validationContextSdsSecretConfig": secret_source(verify.authority),
            }
        if verify.certificate:
            context["tlsCertificateSdsSecretConfigs"] = [secret_source(verify.certificate)]
    return {
        "name": "envoy.transport_sockets.tls",
        "typedConfig": typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", **message),
    }

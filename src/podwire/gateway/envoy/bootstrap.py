"""The file that an engine starts with: where it gets its resources, its admin socket, its limits, its own answers."""

import json

from podwire.gateway.envoy.actions import FAILED_STATUSES, failing_cluster
from podwire.gateway.envoy.clusters import Json, typed
from podwire.gateway.envoy.ready import admin_cluster
from podwire.gateway.envoy.settings import EngineSettings

_DISCOVERY = "discovery"
_INTERNAL = "envoy.bootstrap.internal_listener"
_RUNTIME = {"http.max_requests_per_io_cycle": 1}
"""Connections take turns with each request."""


def bootstrap(node: str, discovery_socket: str, admin_socket: str, settings: EngineSettings) -> str:
    """The bootstrap file as JSON.

    Shares without a backend go to listeners inside the engine that answer with a status, so that they count like
    others.
    """
    return json.dumps(
        {
            "node": {"id": node, "cluster": "podwire-gateway"},
            "admin": {"address": {"pipe": {"path": admin_socket, "mode": 0o600}}},
            "dynamicResources": {
                "adsConfig": {
                    "apiType": "DELTA_GRPC",
                    "transportApiVersion": "V3",
                    "grpcServices": [{"envoyGrpc": {"clusterName": _DISCOVERY}}],
                    "setNodeOnFirstMessageOnly": True,
                },
                "cdsConfig": {"ads": {}, "resourceApiVersion": "V3"},
                "ldsConfig": {"ads": {}, "resourceApiVersion": "V3"},
            },
            "staticResources": {
                "clusters": [
                    _discovery_cluster(discovery_socket),
                    admin_cluster(admin_socket),
                    *(_failing_cluster(status) for status in FAILED_STATUSES),
                ],
                "listeners": [_failing_listener(status) for status in FAILED_STATUSES],
            },
            "bootstrapExtensions": [
                {
                    "name": _INTERNAL,
                    "typedConfig": typed("envoy.extensions.bootstrap.internal_listener.v3.InternalListener"),
                }
            ],
            "layeredRuntime": {"layers": [{"name": "static", "staticLayer": _RUNTIME}]},
            "overloadManager": {
                "resourceMonitors": [
                    {
                        "name": "envoy.resource_monitors.global_downstream_max_connections",
                        "typedConfig": typed(
                            "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                            maxActiveDownstreamConnections=settings.max_connections,
                        ),
                    }
                ]
            },
        },
        indent=1,
    )


def _discovery_cluster(socket: str) -> Json:
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": _DISCOVERY,
        "type": "STATIC",
        "connectTimeout": "1s",
        "typedExtensionProtocolOptions": {options: typed(options, explicitHttpConfig={"http2ProtocolOptions": {}})},
        "loadAssignment": {
            "clusterName": _DISCOVERY,
            "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"pipe": {"path": socket}}}}]}],
        },
    }


def _failing_cluster(status: int) -> Json:
    name = failing_cluster(status)
    address = {"envoyInternalAddress": {"serverListenerName": name, "endpointId": name}}
    return {
        "name": name,
        "type": "STATIC",
        "connectTimeout": "1s",
        "transportSocket": {
            "name": "envoy.transport_sockets.internal_upstream",
            "typedConfig": typed(
                "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
                transportSocket={
                    "name": "envoy.transport_sockets.raw_buffer",
                    "typedConfig": typed("envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"),
                },
            ),
        },
        "loadAssignment": {
            "clusterName": name,
            "endpoints": [{"lbEndpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _failing_listener(status: int) -> Json:
    name = failing_cluster(status)
    route = {"match": {"prefix": "/"}, "directResponse": {"status": status}}
    manager = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        statPrefix=name,
        routeConfig={"virtualHosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
        httpFilters=[
            {
                "name": "envoy.filters.http.router",
                "typedConfig": typed("envoy.extensions.filters.http.router.v3.Router"),
            }
        ],
    )
    return {
        "name": name,
        "internalListener": {},
        "filterChains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": manager}]}
        ],
    }

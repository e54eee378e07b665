"""The listener by which an engine shows that it is ready, and its metrics.

It comes with the first configuration, so an engine that does not know any route yet is not ready. It stays while the
gateway is away. An engine that leaves answers 503: whoever asks, such as an L4 address in front, sends nothing new.
``/metrics`` are the statistics of the engine itself in Prometheus' form.
"""

from podwire.gateway.envoy.clusters import Json, typed

READY_LISTENER = "ready"
ADMIN_CLUSTER = "admin"


def ready_listener(address: str, port: int) -> Json:
    """The listener; answers ``/ready`` and ``/metrics`` alone."""
    socket: Json = {"address": address, "portValue": port}
    if ":" in address:
        socket["ipv4Compat"] = True
    routes = [
        {
            "match": {"path": "/metrics"},
            "route": {"cluster": ADMIN_CLUSTER, "prefixRewrite": "/stats/prometheus", "timeout": "10s"},
        },
    ]
    manager = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        statPrefix=READY_LISTENER,
        routeConfig={"virtualHosts": [{"name": READY_LISTENER, "domains": ["*"], "routes": routes}]},
        httpFilters=[
            {
                "name": "envoy.filters.http.health_check",
                "typedConfig": typed(
                    "envoy.extensions.filters.http.health_check.v3.HealthCheck",
                    passThroughMode=False,
                    headers=[{"name": ":path", "stringMatch": {"exact": "/ready"}}],
                ),
            },
            {
                "name": "envoy.filters.http.router",
                "typedConfig": typed("envoy.extensions.filters.http.router.v3.Router"),
            },
        ],
    )
    return {
        "name": READY_LISTENER,
        "address": {"socketAddress": socket},
        "filterChains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typedConfig": manager}]}
        ],
    }


def admin_cluster(socket: str) -> Json:
    """The engine's own administration socket as a backend."""
    return {
        "name": ADMIN_CLUSTER,
        "type": "STATIC",
        "connectTimeout": "1s",
        "loadAssignment": {
            "clusterName": ADMIN_CLUSTER,
            "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"pipe": {"path": socket}}}}]}],
        },
    }

"""Connections and datagrams that are not read as HTTP, as Envoy's JSON.

A connection goes to one of the backends by weight; where there is none it is closed. Datagrams of a client go to one
endpoint until the client has been silent for a while.
"""

from podwire.gateway.envoy.access import stream_logs
from podwire.gateway.envoy.clusters import Json, typed
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.routes import EntryListener, StreamTarget

_NOWHERE = "nowhere"
"""The name of no cluster."""
_IDLE_TCP = "3600s"
_IDLE_UDP = "60s"


def stream_filter(name: str, target: StreamTarget | None, settings: EngineSettings) -> Json:
    """The filter at the end of a chain that forwards connections."""
    shares = target.backends if target is not None else ()
    config: Json = {
        "statPrefix": name,
        "idleTimeout": _IDLE_TCP,
        "accessLog": stream_logs(settings, target.source if target is not None else ""),
    }
    if len(shares) > 1:
        clusters = [{"name": share.key, "weight": share.weight} for share in shares]
        config["weightedClusters"] = {"clusters": clusters}
    else:
        config["cluster"] = shares[0].key if shares else _NOWHERE
    message = typed("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", **config)
    return {"name": "envoy.filters.network.tcp_proxy", "typedConfig": message}


def udp_listener(value: EntryListener, address: Json) -> Json:
    """A Listener of datagrams."""
    shares = value.stream.backends if value.stream is not None else ()
    cluster = shares[0].key if shares else _NOWHERE
    route = typed("envoy.extensions.filters.udp.udp_proxy.v3.Route", cluster=cluster)
    proxy = typed(
        "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig",
        statPrefix=value.name,
        idleTimeout=_IDLE_UDP,
        matcher={"onNoMatch": {"action": {"name": "route", "typedConfig": route}}},
    )
    return {
        "name": value.name,
        "address": address,
        "enableReusePort": True,
        "listenerFilters": [{"name": "envoy.filters.udp_listener.udp_proxy", "typedConfig": proxy}],
    }

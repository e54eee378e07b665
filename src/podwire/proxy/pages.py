"""The pages of the health port and metrics port of kube-proxy, where load balancers and scrapers look for them."""

from collections.abc import Callable

import msgspec

from podwire.http.message import METRICS_TEXT, TEXT, Response
from podwire.http.routes import Routes
from podwire.model.node import Node
from podwire.proxy.health import Pulse
from podwire.proxy.settings import ProxySettings

_CONFIGZ = "kubeproxy.config.k8s.io"


def health_pages(pulse: Pulse, node: Callable[[], Node | None]) -> Routes:
    """The pages of the health port; ``node`` returns the Node of this node, None while it is not known."""
    return {"/healthz": lambda _: pulse.healthz(node()), "/livez": lambda _: pulse.livez()}


def metrics_pages(
    render: Callable[[], bytes], mode: Callable[[], str], settings: Callable[[], ProxySettings]
) -> Routes:
    """The pages of the metrics port; ``render`` returns the metrics of the whole process."""
    return {
        "/metrics": lambda _: Response(200, render(), METRICS_TEXT),
        "/healthz": lambda _: Response(200, b"ok", TEXT),
        "/proxyMode": lambda _: Response(200, mode().encode(), TEXT),
        "/configz": lambda _: Response(200, msgspec.json.encode({_CONFIGZ: settings()})),
    }

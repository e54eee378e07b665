"""The health and metrics of a component as routes: ``/healthz``, ``/livez``, ``/readyz``, ``/metrics``.

``/healthz`` and ``/livez`` report whether the process works, ``/readyz`` whether it is ready for use. Each answers 200
``ok``, or 503 with a line for each problem. ``/metrics`` is Prometheus' text form. Source of the paths: Kubernetes'
component conventions.
"""

from collections.abc import Callable, Sequence

from podwire.http.answer import Handler
from podwire.http.message import METRICS_TEXT, Response, text_response

Problems = Callable[[], Sequence[str]]
"""The present problems, one line each; empty when there are none."""


def health_routes(live: Problems, ready: Problems, metrics: Callable[[], bytes]) -> dict[str, Handler]:
    """The routes of a component; the functions return its problems and metrics."""
    return {
        "/healthz": lambda request: health_response(live()),
        "/livez": lambda request: health_response(live()),
        "/readyz": lambda request: health_response(ready()),
        "/metrics": lambda request: Response(200, metrics(), METRICS_TEXT),
    }


def health_response(problems: Sequence[str]) -> Response:
    """200 ``ok`` without problems, else 503 with a line for each."""
    return text_response(503, "\n".join(problems)) if problems else text_response(200, "ok")

"""Pages about the API server itself: index of paths, version, health checks, metrics.

Sources: kubernetes staging/src/k8s.io/apiserver/pkg/server/healthz for the forms of ``/healthz``, ``/livez`` and
``/readyz``.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.store import Store
from podwire.http.message import METRICS_TEXT, TEXT, Request, Response

_encode = msgspec.json.Encoder().encode

_VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.0+podwire", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "linux/amd64",
    "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
}  # fmt: skip

_PATHS = [
    "/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version",
]  # fmt: skip


def render_index(_: Request) -> Response:
    """The paths that are served, beside those of single groups."""
    return Response(200, _encode({"paths": _PATHS}))


def render_version(_: Request) -> Response:
    """The version of Kubernetes that the API is compatible with."""
    return Response(200, _encode(_VERSION))


class ReadinessChecks:
    """The checks by name: ``/readyz`` runs them, ``/healthz`` and ``/livez`` only list them."""

    def __init__(self, checks: Mapping[str, Callable[[], bool]]) -> None:
        self.checks = dict(checks)

    def answer(self, request: Request) -> Response:
        """200 or 500 for all checks but the excluded ones, or for the single check that the path names.

        Raises: NotFound for an unknown check.
        """
        endpoint, *names = request.segments()
        checks = {name: check() for name, check in self.checks.items()}
        excluded = {value for key, value in request.query_pairs() if key == "exclude"}
        chosen = {name: passed for name, passed in checks.items() if name not in excluded}
        if names:
            if names[0] not in checks:
                raise failures.no_resource()
            chosen = {names[0]: checks[names[0]]}
        if endpoint != "readyz":
            chosen = dict.fromkeys(chosen, True)
        healthy = all(chosen.values())
        if "verbose" in request.query() or not healthy:
            lines = [
                f"[{'+' if passed else '-'}]{name} {'ok' if passed else 'failed'}" for name, passed in chosen.items()
            ]
            text = "\n".join([*lines, f"{endpoint} check {'passed' if healthy else 'failed'}", ""])
        else:
            text = "ok"
        return Response(200 if healthy else 500, text.encode(), TEXT)


class Metrics:
    """How many objects of each kind are stored, in Prometheus' text form."""

    def __init__(self, store: Store, kinds: Mapping[Key, ResourceKind]) -> None:
        self._store = store
        self._kinds = kinds

    def answer(self, _: Request) -> Response:
        """The metrics as they are now."""
        return Response(200, ("\n".join(self._lines()) + "\n").encode(), METRICS_TEXT)

    def _lines(self) -> Iterable[str]:
        counts = {table.name: len(table.objects) for table in self._store.tables()}
        kinds = {kind.table: kind.resource for kind in self._kinds.values() if kind.has_objects}
        yield "# HELP apiserver_storage_objects Number of stored objects at the time of last check split by kind."
        yield "# TYPE apiserver_storage_objects gauge"
        for resource, count in sorted((kinds[name], count) for name, count in counts.items() if name in kinds):
            yield f'apiserver_storage_objects{{resource="{resource}"}} {count}'

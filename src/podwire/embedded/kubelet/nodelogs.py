"""Serves the log files of a node under ``/logs/`` of the kubelet's server; clients reach it by the API's node proxy.

The paths are those in ``/var/log`` of a node: ``pods/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log`` for the runs that have a
record, and ``kubelet.log`` when the kubelet writes to a file. The answer for a folder is a page of links.
Source: ``pkg/kubelet/server/server.go``, Go's ``http.FileServer``.
"""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import quote

from podwire.embedded.kubelet.podstate import PodState
from podwire.http.message import TEXT, Request, Response, text_response

_LOGS = "logs"


def log_files(states: Iterable[PodState]) -> dict[str, Path]:
    """The files by their paths in the tree."""
    files = {}
    for state in states:
        meta = state.pod.metadata
        folder = f"pods/{meta.namespace}_{meta.name}_{meta.uid}"
        for name, container in state.containers.items():
            for record in (container.previous, container.record):
                if record is not None:
                    files[f"{folder}/{name}/{record.attempt}.log"] = Path(record.log)
    own = Path("/proc/self/fd/2").readlink()
    return {**files, "kubelet.log": own} if own.is_file() else files


def answer_logs(request: Request, segments: list[str], files: Mapping[str, Path]) -> Response:
    """A file, the page of a folder, or 404; ``segments`` is the path below ``/logs``."""
    path = "/".join(segments)
    if path in files:
        try:
            return Response(200, files[path].read_bytes(), TEXT)
        except OSError as failure:
            return text_response(404, f"{path}: {failure.strerror}")
    prefix = f"{path}/" if path else ""
    names = {
        name if not rest else f"{name}/"
        for file in files
        if file.startswith(prefix)
        for name, _, rest in (file.removeprefix(prefix).partition("/"),)
    }
    if not names and path:
        return text_response(404, "404 page not found")
    if not request.raw_path.endswith("/"):
        last = quote(segments[-1] if segments else _LOGS)
        return Response(301, headers=(("Location", f"{last}/"),))
    links = "".join(f'<a href="{quote(name)}">{escape(name)}</a>\n' for name in sorted(names))
    page = f'<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n{links}</pre>\n'
    return Response(200, page.encode(), "text/html; charset=utf-8")

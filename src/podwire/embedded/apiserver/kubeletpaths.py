"""The path and query of requests to a kubelet: log, exec, attach, port-forward.

Options are parsed and checked here, as in Kubernetes, so the kubelet gets them in one form: a boolean is ``true`` or
``1``, or it is absent.
Sources: Kubernetes' ``pkg/registry/core/pod/strategy.go``, ``ValidatePodLogOptions``.
"""

from typing import Any
from urllib.parse import quote, urlencode

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.validate import causes
from podwire.runtime.clock import parse_rfc3339

Object = dict[str, Any]

_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Options of exec and attach, with their names at the kubelet."""
_LOG_FLAGS = ("follow", "previous", "timestamps")
_LOG_NUMBERS = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
"""Options of logs that are numbers, with their least values."""
_LOG_STREAMS = ("All", "Stderr", "Stdout")
_LOG_OPTIONS = ResourceKind(group="", version="v1", kind="PodLogOptions", plural="")


def kubelet_path(call: Call, pod: Object) -> str:
    """The path with its query.

    Raises: ApiError 400 for a container that the pod does not have or options that cannot be read, Invalid for options
    with wrong values.
    """
    where = f"{quote(call.namespace)}/{quote(call.name)}"
    if call.subresource == "portforward":
        return with_query(f"/portForward/{where}", call.request.raw_query)
    container = quote(_container(call, pod))
    if call.subresource == "log":
        return with_query(f"/containerLogs/{where}/{container}", urlencode(_log_options(call)))
    pairs = [("command", value) for key, value in call.request.query_pairs() if key == "command"]
    pairs += [(name, "1") for option, name in _STREAMS.items() if call.flag(option)]
    return with_query(f"/{call.subresource}/{where}/{container}", urlencode(pairs))


def with_query(path: str, query: str) -> str:
    """The path with the query, where there is one."""
    return f"{path}?{query}" if query else path


def _container(call: Call, pod: Object) -> str:
    spec = pod.get("spec") or {}
    container = call.query.get("container", "") or _default_container(call, pod)
    names = [
        c.get("name")
        for field in ("containers", "initContainers", "ephemeralContainers")
        for c in spec.get(field) or ()
    ]
    if container not in names:
        raise failures.bad_request(f"container {container} is not valid for pod {call.name}")
    return container


def _default_container(call: Call, pod: Object) -> str:
    containers = [str(c.get("name")) for c in (pod.get("spec") or {}).get("containers") or ()]
    chosen = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if chosen in containers:
        return str(chosen)
    if len(containers) > 1:
        raise failures.bad_request(
            f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(containers)}]"
        )
    return containers[0] if containers else ""


def _log_options(call: Call) -> list[tuple[str, str]]:
    numbers = {name: number for name in _LOG_NUMBERS if (number := call.number(name)) is not None}
    since, stream = call.query.get("sinceTime"), call.query.get("stream", "All")
    if since is not None:
        try:
            parse_rfc3339(since)
        except ValueError as failure:
            raise failures.bad_request(f'parsing time "{since}": expected a time as in RFC 3339') from failure
    invalid_fields = [
        causes.invalid(name, number, "must be greater than 0" if least else "must be greater than or equal to 0")
        for name, least in _LOG_NUMBERS.items()
        if (number := numbers.get(name, least)) < least
    ]
    invalid_fields += _contradictions(numbers, since, stream)
    if invalid_fields:
        raise failures.invalid(_LOG_OPTIONS, call.name, invalid_fields)
    pairs = [(name, "true") for name in _LOG_FLAGS if call.flag(name)]
    pairs += [(name, str(number)) for name, number in numbers.items()]
    pairs += [("sinceTime", since)] if since is not None else []
    return pairs + ([("stream", stream)] if stream != "All" else [])


def _contradictions(numbers: dict[str, int], since: str | None, stream: str) -> list[Cause]:
    invalid_fields = []
    if since is not None and "sinceSeconds" in numbers:
        invalid_fields.append(causes.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    if stream not in _LOG_STREAMS:
        invalid_fields.append(causes.unsupported("stream", stream, _LOG_STREAMS))
    elif stream != "All" and "tailLines" in numbers:
        invalid_fields.append(causes.forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now"))
    return invalid_fields

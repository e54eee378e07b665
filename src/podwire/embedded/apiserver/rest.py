"""The request path: from an HTTP request to its answer.

First the user is identified and the request is authorized. Then the path decides who answers: an extension API server,
a resource, or a page outside the resources (discovery, OpenAPI, health; see ``pages``).
Reads are answered in the same turn of the event loop. A write, or a read of an object that is not on the disk yet, is
answered when the object is on the disk.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver import bodies, failures, pretty
from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.aggregation.extensions import Extension, Extensions
from podwire.embedded.apiserver.auth import Authenticator
from podwire.embedded.apiserver.authorization import impersonation
from podwire.embedded.apiserver.authorization.authorizer import MASTERS, Authorizer
from podwire.embedded.apiserver.authorization.requests import attributes_of
from podwire.embedded.apiserver.authorization.reviews import Reviews
from podwire.embedded.apiserver.calls import Call, UserInfo, parse_target
from podwire.embedded.apiserver.connectoptions import CONNECTIONS, read_options, with_options
from podwire.embedded.apiserver.deleterequests import DeleteRequests
from podwire.embedded.apiserver.durableanswers import DurableAnswers
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.embedded.apiserver.store import Store
from podwire.embedded.apiserver.strategies import CREATED_BY_UPDATE
from podwire.embedded.apiserver.subresources import Subresources
from podwire.embedded.apiserver.views import Unconverted
from podwire.embedded.apiserver.waits import Waits, begin
from podwire.embedded.apiserver.watches import Watcher
from podwire.embedded.apiserver.watchsocket import send_events
from podwire.embedded.apiserver.writes import Outdated, Writer, WriteResult
from podwire.errors import ApiError
from podwire.http.answer import Handler, Result
from podwire.http.handshake import is_upgrade
from podwire.http.message import Request, Response

_encode = msgspec.json.Encoder().encode


_STREAMS = ("exec", "attach", "portforward")

Outcome = Result | Awaitable[Result]

_ATTEMPTS = 5
"""The number of attempts of a write whose object changes meanwhile; as in Kubernetes for patches."""

Tunnel = Callable[[Call], Awaitable[Result]]


class Collaborators(msgspec.Struct, frozen=True):
    """The handlers that the API passes requests to."""

    store: Store
    kinds: Mapping[Key, ResourceKind]
    reader: ObjectReader
    writer: Writer
    watcher: Watcher
    authenticator: Authenticator
    authorizer: Authorizer
    subresources: Subresources
    tunnel: Tunnel
    extensions: Extensions
    forward: Callable[[Extension, Request, UserInfo], Awaitable[Result]]
    """Forwards a request to an extension API server."""
    pages: Mapping[str, Handler]
    """Handlers of the paths outside the resources, by the first segment; the root has the empty text."""
    computed: Mapping[str, Callable[[Call], Outcome]] = {}
    """Handlers of reads of computed kinds, by kind."""


class Api:
    """Answers requests."""

    def __init__(self, collaborators: Collaborators) -> None:
        self._store = collaborators.store
        self._kinds = collaborators.kinds
        self._reader = collaborators.reader
        self._writer = collaborators.writer
        self._watcher = collaborators.watcher
        self._computed = collaborators.computed
        self._authenticator = collaborators.authenticator
        self._authorizer = collaborators.authorizer
        self._reviews = Reviews(collaborators.authenticator, collaborators.authorizer)
        self._subresources = collaborators.subresources
        self._tunnel = collaborators.tunnel
        self._extensions = collaborators.extensions
        self._forward = collaborators.forward
        self._pages = collaborators.pages
        self._answers = DurableAnswers(self._store)
        self._deletions = DeleteRequests(self._store, self._reader, self._writer, self._answers)

    def handle(self, request: Request) -> Result | Awaitable[Result]:
        """The answer to a request, or a future of it."""
        try:
            result = self._route(request)
        except ApiError as failure:
            result = failures.render(failure)
        return pretty.indent(result) if pretty.is_wanted(request) else result

    def _route(self, request: Request) -> Result | Awaitable[Result]:
        user = self._authenticator.user(request)
        if impersonation.is_wanted(request):
            user = impersonation.impersonated(request, user, self._authorizer.check)
        segments = request.segments()
        if MASTERS not in user.groups:
            self._authorize(request, user, segments)
        first = segments[0] if segments else ""
        if self._extensions and first == "apis" and len(segments) > 2:
            extension = self._extensions.serving(segments[1], segments[2])
            if extension is not None:
                return self._forward(extension, request, user)
        if (first == "api" and len(segments) > 2) or (first == "apis" and len(segments) > 3):
            return self._resource(Call(request, user, parse_target(segments, self._kinds)))
        if request.method not in ("GET", "HEAD"):
            raise failures.method_not_allowed()
        page = self._pages.get(first)
        if page is None:
            raise failures.no_resource()
        return page(request)

    def _authorize(self, request: Request, user: UserInfo, segments: list[str]) -> None:
        """Raises: ApiError 403 unless the user may do what the request asks for."""
        asked = attributes_of(request, segments)
        self._authorizer.check(user, asked)
        streams = asked.subresource in _STREAMS and asked.resource == "pods"
        if streams and asked.verb == "get" and "websocket" in request.headers.get("upgrade", "").lower():
            # A WebSocket begins with GET and does what POST does.
            self._authorizer.check(user, msgspec.structs.replace(asked, verb="create"))

    # -- resources

    def _resource(self, call: Call) -> Result | Awaitable[Result]:
        kind, method = call.kind, call.request.method
        if call.subresource and call.subresource != "status":
            return self._subresource(call)
        verb = call.verb
        allowed = kind.subresource("status").verbs if call.subresource else kind.verbs  # type: ignore[union-attr]
        if verb not in allowed:
            raise failures.method_not_allowed()
        computed = self._computed.get(kind.kind)
        if computed is not None:
            return computed(call)
        if not kind.has_objects:
            return _begin(self._attempt(call, self._review))
        if method in ("GET", "HEAD"):
            return self._read(call)
        if method == "DELETE":
            return _begin(self._attempt(call, self._deletions.delete if call.name else self._deletions.delete_all))
        return _begin(self._attempt(call, self._writing))

    def _attempt(self, call: Call, work: Callable[[Call], Waits[Outcome]]) -> Waits[Outcome]:
        """Repeats the work while other writers change its object during webhook calls."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                return (yield from work(call))
            except Outdated:
                call.warnings.clear()
                if not attempts_left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _writing(self, call: Call) -> Waits[Outcome]:
        written = yield from self._write(call)
        if call.kind.webhook and written.entry is not None:
            yield from self._writer.conversions.prepare(call.kind, (written.entry,))
        return self._settle(call, written)

    def _review(self, call: Call) -> Waits[Outcome]:
        media_type = bodies.media_type(call.request.headers.get("content-type", ""))
        obj = self._writer.parse(call, media_type, call.request.body)
        if call.kind.kind == "Binding":
            name = str((obj.get("metadata") or {}).get("name", ""))
            version = yield from self._subresources.bind(call, name, obj)
            return self._answers.later(version, lambda: _success(201))
        obj = self._reviews.answer(call, obj)
        return Response(201, _encode({"kind": call.kind.kind, "apiVersion": call.kind.api_version, **obj}))

    def _read(self, call: Call) -> Result | Awaitable[Result]:
        if call.watching:
            events = self._watcher.watch(call)
            return send_events(call.request, events) if is_upgrade(call.request) else events
        if call.kind.webhook:
            return self._read_converted(call)
        table = self._store.table(call.kind.table)
        if not call.name:
            return self._answers.settled(table.version, lambda: self._reader.list(call))
        entry = self._store.get(call.kind.table, call.namespace, call.name)
        version = entry.version if entry is not None else table.version
        return self._answers.settled(version, lambda: self._reader.get(call))

    async def _read_converted(self, call: Call) -> Result:
        """The answer to a read, after a webhook has converted the objects; repeated when they change meanwhile."""
        kind = call.kind
        try:
            for _ in range(_ATTEMPTS):
                durable = self._store.durable(self._store.table(kind.table).version)
                if durable is not None:
                    await durable
                try:
                    return self._reader.get(call) if call.name else self._reader.list(call)
                except Unconverted as missing:
                    failure = await self._writer.conversions.convert(missing.kind, missing.entries)
                    if failure is not None:
                        raise failure from None
        except ApiError as failure:
            return failures.render(failure)
        return failures.render(
            ApiError(500, "InternalError", f"the {kind.plural} change faster than they are converted")
        )

    def _write(self, call: Call) -> Waits[WriteResult]:
        request = call.request
        media_type = bodies.media_type(request.headers.get("content-type", ""))
        self._authorize_creation(call, media_type)
        if request.method == "PATCH":
            return (yield from self._writer.patch(call, media_type, request.body))
        obj = self._writer.parse(call, media_type, request.body)
        if request.method == "POST":
            if call.name or (call.kind.namespaced and not call.namespace):
                raise failures.method_not_allowed()
            return (yield from self._writer.create(call, obj))
        return (yield from self._writer.update(call, obj))

    def _authorize_creation(self, call: Call, media_type: str) -> None:
        """Raises: ApiError 403 for a PUT or an apply that creates, unless the user may create."""
        if call.request.method == "POST" or call.subresource or MASTERS in call.user.groups:
            return
        applies = call.request.method == "PATCH" and media_type == bodies.APPLY_YAML
        replaces = call.request.method == "PUT" and call.kind.table in CREATED_BY_UPDATE
        if (applies or replaces) and self._store.get(call.kind.table, call.namespace, call.name) is None:
            asked = attributes_of(call.request, call.request.segments())
            self._authorizer.check(call.user, msgspec.structs.replace(asked, verb="create"))

    def _settle(self, call: Call, written: WriteResult) -> Result | Awaitable[Result]:
        headers = _warnings(call)
        status = 201 if written.created else 200
        entry = written.entry
        if entry is None:
            answer = self._reader.render_object(call, written.obj or {}, status)
        else:
            answer = self._reader.render_entry(call, entry, status)
        if headers:
            answer = msgspec.structs.replace(answer, headers=headers)
        return self._answers.later(entry.version if entry is not None else 0, lambda: answer)

    def _subresource(self, call: Call) -> Result | Awaitable[Result]:
        sub = call.kind.subresource(call.subresource)
        options = call.subresource == "proxy" and call.request.method == "OPTIONS"
        if sub is None or (call.verb not in sub.verbs and not options):
            raise failures.method_not_allowed()
        if call.subresource == "log":
            return self._tunnel(call)
        if call.subresource in CONNECTIONS:
            return _begin(self._connect(call))
        return _begin(self._attempt(call, self._answer_subresource))

    def _connect(self, call: Call) -> Waits[Outcome]:
        """Runs the admission plugins for a connection, then connects with the resulting options."""
        options = read_options(call)
        admitted = yield from self._writer.admit(AdmissionRequest(call, "CONNECT", dict(options)))
        return self._tunnel(call if admitted == options else with_options(call, admitted))

    def _answer_subresource(self, call: Call) -> Waits[Outcome]:
        status, body, version = yield from self._subresources.answer(call)
        answer = Response(status, body, headers=_warnings(call))
        return self._answers.later(version, lambda: answer)

    # -- waiting for the disk


def _begin(work: Waits[Outcome]) -> Outcome:
    """The answer, or a coroutine where the work has to wait."""
    outcome = begin(work)
    return _finished(outcome) if isinstance(outcome, Coroutine) else outcome


async def _finished(work: Coroutine[Any, Any, Outcome]) -> Result:
    try:
        outcome = await work
    except ApiError as failure:
        return failures.render(failure)
    return await outcome if isinstance(outcome, Awaitable) else outcome


def _warnings(call: Call) -> tuple[tuple[str, str], ...]:
    return tuple(("Warning", f'299 - "{_escaped(text)}"') for text in call.warnings)


def _success(status: int) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": status}
    return Response(status, _encode(body))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").encode("ascii", "replace").decode()

"""Requests that delete one object, or all objects that a selection matches."""

from collections.abc import Awaitable
from typing import Any

import msgspec

from podwire.embedded.apiserver import bodies, failures, views
from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.calls import Call, delete_options
from podwire.embedded.apiserver.customform import parse_selection
from podwire.embedded.apiserver.durableanswers import DurableAnswers
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.embedded.apiserver.schema import data
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.embedded.apiserver.strategies import RETURNED_WHEN_DELETED
from podwire.embedded.apiserver.validate import fields
from podwire.embedded.apiserver.waits import Waits
from podwire.embedded.apiserver.writes import Writer, outdated
from podwire.http.answer import Result
from podwire.http.message import Response

Outcome = Result | Awaitable[Result]

_encode = msgspec.json.Encoder().encode

_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"


class DeleteRequests:
    """Answers requests with the method DELETE."""

    def __init__(self, store: Store, reader: ObjectReader, writer: Writer, answers: DurableAnswers) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._answers = answers

    def delete(self, call: Call) -> Waits[Outcome]:
        kind = call.kind
        entry = self._store.get(kind.table, call.namespace, call.name)
        if entry is None:
            version = self._store.table(kind.table).version
            missing = failures.render(failures.not_found(kind, call.name))
            return self._answers.later(version, lambda: missing)
        options = delete_options(call, _options(call))
        yield from self._admit_deletion(call, entry, options)
        last, gone = self._writer.deletion.delete(kind, entry, options)
        if kind.webhook and not gone:
            yield from self._writer.conversions.prepare(kind, (last,))
        if gone and kind.table not in RETURNED_WHEN_DELETED:
            done = Response(200, _encode(failures.success(kind, entry.name, entry.uid)))
        else:
            done = self._reader.render_entry(call, last)
        return self._answers.later(last.version, lambda: done)

    def delete_all(self, call: Call) -> Waits[Outcome]:
        kind = call.kind
        options = delete_options(call, _options(call))
        selection = parse_selection(kind, call.query, call.namespace)
        if selection.read is not None:
            yield from self._writer.conversions.prepare(kind, self._reader.select(kind.table, selection.coarse))
        deleted = []
        for entry in self._reader.select(kind.table, selection):
            yield from self._admit_deletion(call, entry, options)
            deleted.append(self._writer.deletion.delete(kind, entry, options)[0])
        yield from self._writer.conversions.prepare(kind, deleted)
        noun = kind.list_kind or f"{kind.kind}List"
        body = _encode({
            "kind": noun, "apiVersion": kind.api_version, "metadata": {"resourceVersion": str(self._store.version)},
            "items": [msgspec.Raw(views.plain(kind, entry)) for entry in deleted],
        })  # fmt: skip
        return self._answers.later(self._store.table(kind.table).version, lambda: Response(200, body))

    def _admit_deletion(self, call: Call, entry: StoredObject, options: dict[str, Any]) -> Waits[None]:
        """Raises: ApiError when an admission plugin refuses the deletion; Outdated when the object has changed."""
        obj = (yield from self._writer.conversions.view(call.kind, entry)) if call.kind.custom else entry.object()
        yield from self._writer.admit(AdmissionRequest(call, "DELETE", None, obj, options))
        if self._store.get(entry.table, entry.namespace, entry.name) is not entry:
            raise outdated(call.kind, entry.name)


def _options(call: Call) -> dict[str, Any]:
    """The DeleteOptions in the body; empty without one."""
    request = call.request
    if not request.body.strip():
        return {}
    options = bodies.parse_object(request.headers.get("content-type", ""), request.body)
    return fields.decode(options, data.named(_DELETE_OPTIONS), call.kind).obj

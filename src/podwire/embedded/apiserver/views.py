"""The form of an object in an answer: plain, as a Table, as metadata only, or in another version.

A view is chosen from the ``Accept`` header. Plain JSON of the stored version is the stored text itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from podwire.embedded.apiserver import conversion, failures
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.store import StoredObject, is_stored_in

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

PLAIN = "plain"
TABLE = "table"
METADATA = "metadata"


class View(msgspec.Struct, frozen=True):
    """One form of answer; hashable, so that encodings can be kept by it."""

    kind: ResourceKind
    form: str = PLAIN
    include: str = "Metadata"
    yaml: bool = False
    headless: bool = False
    """Tables without column definitions, as in all but the first event of a watch."""


def choose(kind: ResourceKind, accept: str, include: str = "") -> View:
    """The first form in ``Accept`` that the server supports.

    Raises: ApiError 406 when there is none.
    """
    if not accept or accept == "application/json":
        return View(kind)
    for media_range in accept.split(","):
        media, *parameters = [field.strip() for field in media_range.split(";")]
        options = dict(field.partition("=")[::2] for field in parameters)
        if media in ("application/json", "*/*", "application/*", "application/yaml"):
            form = options.get("as", "")
            if form == "Table":
                return View(kind, TABLE, include or "Metadata")
            if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return View(kind, METADATA)
            if not form:
                return View(kind, yaml=media == "application/yaml")
    raise failures.not_acceptable()


class Unconverted(Exception):
    """Objects that a webhook has to convert before they can leave the server."""

    def __init__(self, kind: ResourceKind, entries: Sequence[StoredObject]) -> None:
        super().__init__(kind.resource)
        self.kind = kind
        self.entries = entries


def need(kind: ResourceKind, entries: Sequence[StoredObject]) -> None:
    """Raises: Unconverted when a webhook has to convert some of the objects first."""
    if kind.webhook:
        missing = [entry for entry in entries if not entry.is_in(kind.api_version)]
        if missing:
            raise Unconverted(kind, missing)


def plain(kind: ResourceKind, entry: StoredObject) -> bytes:
    """The object as JSON in the requested version.

    Raises: Unconverted.
    """
    unchanged = not kind.shared or is_stored_in(entry.raw, kind.api_version)
    if kind.form is not None and (unchanged or not kind.webhook):
        return entry.filled(kind.form)
    if unchanged:
        return entry.raw
    if kind.webhook:
        need(kind, (entry,))
        return entry.raw_in(kind.api_version)
    return _encode(conversion.view(kind, entry.object()))


def decoded(kind: ResourceKind, entry: StoredObject) -> Object:
    """The object in the requested version.

    Raises: Unconverted.
    """
    if kind.webhook or kind.form is not None:
        obj: Object = _decode(plain(kind, entry))
        return obj
    return conversion.view(kind, entry.object())


def metadata_only(obj: Object) -> Object:
    """The ``PartialObjectMetadata`` of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def list_meta(version: int, more: str = "", remaining: int | None = None) -> Object:
    """The metadata of a list; ``more`` is the token of the next page, ``remaining`` how many items follow."""
    meta: Object = {"resourceVersion": str(version)}
    if more:
        meta["continue"] = more
        if remaining is not None:
            meta["remainingItemCount"] = remaining
    return meta


def list_head(kind: ResourceKind, version: int, more: str = "", remaining: int | None = None) -> bytes:
    """A list up to its first item."""
    meta = list_meta(version, more, remaining)
    noun = kind.list_kind or f"{kind.kind}List"
    return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[' % (
        noun.encode(), kind.api_version.encode(), _encode(meta),
    )  # fmt: skip


def join_list(kind: ResourceKind, head: bytes, entries: Iterable[StoredObject]) -> bytes:
    """The whole list as JSON."""
    return head + b",".join([plain(kind, entry) for entry in entries]) + b"]}"


def metadata_list(kind: ResourceKind, meta: Object, entries: Sequence[StoredObject]) -> bytes:
    """A list of metadata only; conversion leaves labels and annotations as they are stored, except by a webhook.

    Raises: Unconverted.
    """
    return _encode({
        "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "items": [metadata_only(decoded(kind, entry) if kind.webhook else entry.object()) for entry in entries],
    })  # fmt: skip

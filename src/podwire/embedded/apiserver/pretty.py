"""Answers in several indented lines: for ``?pretty=true``, and for curl, wget and browsers without the option.

Source: ``isPrettyPrint`` in ``k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go``.
"""

from collections.abc import Awaitable

import msgspec

from podwire.http.answer import Result
from podwire.http.message import Request, Response

_PEOPLE = ("curl", "Wget", "Mozilla/5.0")
"""The User-Agent prefixes of programs whose output a person reads."""
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""The texts that ``strconv.ParseBool`` reads as true, for this one option."""


def is_wanted(request: Request) -> bool:
    """Whether the client wants indented lines; answers of pods and nodes through the proxy are never changed."""
    if "/proxy" in request.raw_path:
        return False
    value = request.query().get("pretty", "") if "pretty" in request.raw_query else ""
    return value in _TRUE if value else request.headers.get("user-agent", "").startswith(_PEOPLE)


def indent(result: Result | Awaitable[Result]) -> Result | Awaitable[Result]:
    """The same answer with its JSON in indented lines; streams stay as they are."""
    return _indented_later(result) if isinstance(result, Awaitable) else _indented(result)


async def _indented_later(result: Awaitable[Result]) -> Result:
    return _indented(await result)


def _indented(result: Result) -> Result:
    if not isinstance(result, Response) or result.content_type != "application/json" or not result.body:
        return result
    return msgspec.structs.replace(result, body=msgspec.json.format(result.body, indent=2) + b"\n")

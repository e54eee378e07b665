"""``bufsize [BYTES]``: the largest UDP size that requests to upstream servers and replies may have. Pure.

A larger size in a request counts as this size. Without a number it is 1,232 bytes, which fits into every path.
"""

from typing import Self

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, whole
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps

_DEFAULT, _LEAST, _MOST = 1232, 512, 4096


class BufferSize:
    """Lowers the size in the EDNS record of requests."""

    per_client = False

    def __init__(self, size: int) -> None:
        self._size = size

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin.

        Raises: ConfigError for a size that is not between 512 and 4096.
        """
        directive = directives[-1]
        expect(len(directive.arguments) < 2 and not directive.block, directive, "expected at most a size")
        size = whole(directive, directive.arguments[0]) if directive.arguments else _DEFAULT
        expect(_LEAST <= size <= _MOST, directive, f"expected {_LEAST} to {_MOST} bytes, got {size}")
        return cls(size)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply to the request with at most this size."""
        query = request.query
        if query.edns is not None and query.edns.size > self._size and not request.tcp:
            edns = msgspec.structs.replace(query.edns, size=self._size)
            request = msgspec.structs.replace(request, query=msgspec.structs.replace(query, edns=edns))
        return (yield from following(request))

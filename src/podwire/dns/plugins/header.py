"""``header``: sets or clears the flags AA, RA and RD, of replies or of requests. Pure."""

from functools import reduce
from operator import or_
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps

_FLAGS = {"aa": wire.AA, "ra": wire.RA, "rd": wire.RD}


class HeaderFlags:
    """The flags to set and to clear, of requests and of replies."""

    per_client = False

    def __init__(self, query: tuple[int, int], response: tuple[int, int]) -> None:
        self._query_set, self._query_clear = query
        self._reply_set, self._reply_clear = response

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin; a rule without ``query`` or ``response`` is about replies."""
        masks = {("query", "set"): 0, ("query", "clear"): 0, ("response", "set"): 0, ("response", "clear"): 0}
        options = [option for directive in directives for option in directive.block]
        for directive in directives:
            expect(not directive.arguments and bool(directive.block), directive, "expected a block with set or clear")
        for option in options:
            fields = (option.name, *option.arguments)
            message, action, *names = fields if fields[0] in ("query", "response") else ("response", *fields)
            wrong = f"expected [query|response] set|clear and flags of {', '.join(_FLAGS)}"
            expect((message, action) in masks and bool(names) and set(names) <= _FLAGS.keys(), option, wrong)
            masks[message, action] = reduce(or_, (_FLAGS[name] for name in names), masks[message, action])
        return cls(
            (masks["query", "set"], masks["query", "clear"]), (masks["response", "set"], masks["response", "clear"])
        )

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply with its flags changed."""
        flags = (request.query.flags | self._query_set) & ~self._query_clear
        if flags != request.query.flags:
            query = msgspec.structs.replace(request.query, flags=flags)
            request = msgspec.structs.replace(request, query=query)
        reply = yield from following(request)
        set_flags = (reply.set_flags | self._reply_set) & ~self._reply_clear
        clear_flags = (reply.clear_flags | self._reply_clear) & ~self._reply_set
        return msgspec.structs.replace(reply, set_flags=set_flags, clear_flags=clear_flags)

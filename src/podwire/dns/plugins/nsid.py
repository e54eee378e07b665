"""``nsid [TEXT]``: names this server in the EDNS option NSID, for clients that ask for it (RFC 5001). Pure."""

from typing import Self

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect
from podwire.dns.plugins.ednsoptions import NSID, join_options, split_options
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps


class Nsid:
    """Adds the option to replies; without a text it is the name of the host."""

    per_client = False

    def __init__(self, text: str) -> None:
        self._option = join_options(((NSID, text.encode()),))

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin; several arguments are joined with blanks."""
        for directive in directives:
            expect(not directive.block, directive, "podwire does not have options of nsid")
        return cls(" ".join(directives[-1].arguments) or scope.host_name)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply, with the option if the request has it."""
        edns = request.query.edns
        reply: PluginReply = yield from following(request)
        if edns is None or NSID not in dict(split_options(edns.options)):
            return reply
        return msgspec.structs.replace(reply, options=reply.options + self._option)

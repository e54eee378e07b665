"""``minimal``: leaves out the authority and additional records that an answer does not need. Pure.

Referrals, failures and answers without data keep theirs, because a resolver needs them (RFC 2308).
"""

from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect_bare
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps


class Minimal:
    """Shortens replies."""

    per_client = False

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin, which has no options."""
        for directive in directives:
            expect_bare(directive)
        return cls()

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply with its answers only."""
        reply = (yield from following(request)).expanded()
        answer = reply.answer
        if answer.rcode != wire.NOERROR or not answer.records or not (answer.authority or answer.additional):
            return reply
        return msgspec.structs.replace(reply, answer=msgspec.structs.replace(answer, authority=(), additional=()))

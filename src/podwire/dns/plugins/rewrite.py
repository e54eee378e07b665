"""``rewrite [continue|stop] FIELD ...``: changes requests for the plugins behind it, and the replies back. Pure.

How it works: the rules are tried in order; the first one that matches changes the request, and ends the list unless it
says ``continue``. The question of the reply is always that of the client. The answers keep their names, except: after
an ``exact`` rule, with ``answer auto``, and with ``answer name`` or ``answer value`` (regular expressions with
``{1}``). A rule of ``ttl`` changes the TTL of replies, ``SECONDS`` or ``MIN-MAX``; a rule of ``edns0`` changes the
options of the request to upstream servers.

Each rule is a class with ``apply(request)``, which returns the changed request and the rules for its reply, or None.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, Self

import msgspec

from podwire.dns import wire
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, record_class, record_type
from podwire.dns.names import decode_name, encode_name
from podwire.dns.plugins.namerules import MATCHES, NameChange, read_name_change
from podwire.dns.plugins.optionrules import OptionRule, read_option_rule
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps, refusal
from podwire.dns.wire import ResourceRecord
from podwire.errors import ProtocolError

RecordChange = Callable[[ResourceRecord], ResourceRecord]
"""Changes a record of a reply."""


class Applied(NamedTuple):
    """What a rule does with a request: the changed request, and the changes of the records of its reply."""

    request: PluginRequest
    changes: tuple[RecordChange, ...] = ()


class NumberRule(msgspec.Struct, frozen=True):
    """Replaces the type or the class of a question."""

    field: str
    before: int
    after: int

    def apply(self, request: PluginRequest) -> Applied | None:
        """The changed request, or None when the number differs."""
        if getattr(request.query, self.field) != self.before:
            return None
        query = msgspec.structs.replace(request.query, **{self.field: self.after})
        return Applied(msgspec.structs.replace(request, query=query))


class NameRule(msgspec.Struct, frozen=True):
    """Replaces the name in a question."""

    change: NameChange

    def apply(self, request: PluginRequest) -> Applied | None:
        """The changed request, or None when the name does not match.

        Raises: ProtocolError when the new name is none.
        """
        name = decode_name(request.query.name).lower()
        outcome = self.change.apply(name)
        if outcome is None:
            return None
        changes: list[RecordChange] = []
        for rewriter in outcome.owners:
            changes.append(lambda record, rewrite=rewriter: _change_owner(record, rewrite))  # type: ignore[misc]
        for rewriter in outcome.values:
            changes.append(lambda record, rewrite=rewriter: _change_values(record, rewrite))  # type: ignore[misc]
        return Applied(request.renamed(encode_name(outcome.name)), tuple(changes))


class TtlRule(msgspec.Struct, frozen=True):
    """Sets the TTL of the records in replies to a value in a range."""

    change: NameChange
    least: int
    most: int

    def apply(self, request: PluginRequest) -> Applied | None:
        """The request as it is, with the change of its reply, or None when the name does not match."""
        if self.change.apply(decode_name(request.query.name).lower()) is None:
            return None

        def limit(record: ResourceRecord) -> ResourceRecord:
            return msgspec.structs.replace(record, ttl=min(max(record.ttl, self.least), self.most))

        return Applied(request, (limit,))


Rule = NumberRule | NameRule | TtlRule | OptionRule


class Rewrite:
    """The rules of a server block, each with whether the next rule is tried after it."""

    def __init__(self, rules: tuple[tuple[Rule, bool], ...]) -> None:
        self.rules = rules
        self.per_client = any(isinstance(rule, OptionRule) and rule.per_client for rule, _ in rules)

    @classmethod
    def read(cls, directives: tuple[Directive, ...], _scope: PluginScope) -> Self:
        """The plugin of all ``rewrite`` directives, in order."""
        return cls(tuple(_read_rule(directive) for directive in directives))

    def change(self, request: PluginRequest) -> Applied:
        """The request as the following plugins see it.

        Raises: ProtocolError when a rule makes a name that is none.
        """
        changes: tuple[RecordChange, ...] = ()
        for rule, goes_on in self.rules:
            if isinstance(rule, OptionRule):
                options = rule.apply(request)
                applied = None if options is None else Applied(msgspec.structs.replace(request, options=options))
            else:
                applied = rule.apply(request)
            if applied is not None:
                request = applied.request
                # The reply is changed back in the reverse order.
                changes = applied.changes + changes
                if not goes_on:
                    break
        return Applied(request, changes)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply to the changed request, as an answer to the original question."""
        try:
            changed, changes = self.change(request)
        except ProtocolError:
            return refusal(request.query, wire.SERVFAIL, "rewrite")
        reply: PluginReply = yield from following(changed)
        if changed.query == request.query and not changes:
            return reply
        reply = reply.expanded()
        answer = reply.answer
        for change in changes:
            answer = msgspec.structs.replace(
                answer,
                records=tuple(map(change, answer.records)),
                authority=tuple(map(change, answer.authority)),
                additional=tuple(map(change, answer.additional)),
            )
        return msgspec.structs.replace(reply, query=request.query, answer=answer)


def _change_owner(record: ResourceRecord, rewrite: Callable[[str], str]) -> ResourceRecord:
    return msgspec.structs.replace(record, name=_rewritten(record.name, rewrite))


def _change_values(record: ResourceRecord, rewrite: Callable[[str], str]) -> ResourceRecord:
    if not record.names:
        return record
    return msgspec.structs.replace(record, names=tuple(_rewritten(name, rewrite) for name in record.names))


def _rewritten(name: bytes, rewrite: Callable[[str], str]) -> bytes:
    """The name after a rewrite; as before when the new text is no name."""
    before = decode_name(name).lower()
    after = rewrite(before)
    if after == before:
        return name
    try:
        return encode_name(after)
    except ProtocolError:
        return name


def _read_rule(directive: Directive) -> tuple[Rule, bool]:
    arguments = list(directive.arguments)
    goes_on = False
    if arguments and arguments[0] in ("continue", "stop"):
        goes_on = arguments.pop(0) == "continue"
    for option in directive.block:
        arguments += [option.name, *option.arguments]
    expect(len(arguments) > 1, directive, "expected name, type, class, edns0 or ttl, and its arguments")
    field, *rest = arguments
    match field:
        case "type" | "class":
            expect(len(rest) == 2, directive, f"expected two of {field}")
            parse = record_type if field == "type" else record_class
            before, after = (parse(directive, text) for text in rest)
            return NumberRule("qtype" if field == "type" else "qclass", before, after), goes_on
        case "name":
            return NameRule(read_name_change(directive, rest, answers=True)), goes_on
        case "ttl":
            return _read_ttl_rule(directive, rest), goes_on
        case "edns0":
            return read_option_rule(directive, rest), goes_on
        case _ if field in MATCHES or len(arguments) == 2:
            return NameRule(read_name_change(directive, arguments, answers=True)), goes_on
    raise directive.wrong(f"podwire does not rewrite {field!r}; it rewrites name, type, class, edns0 and ttl")


def _read_ttl_rule(directive: Directive, rest: list[str]) -> TtlRule:
    expect(len(rest) in (2, 3), directive, "expected ttl, a kind of match, a name, and seconds")
    span = re.fullmatch(r"(\d+)|(\d*)-(\d*)", rest[-1])
    if span is None:
        raise directive.wrong(f"expected seconds, or a range such as 30-300, got {rest[-1]!r}")
    if span[1]:
        least = most = int(span[1])
    else:
        least, most = int(span[2] or 0), int(span[3] or (1 << 31) - 1)
    expect(least <= most, directive, f"expected a range such as 30-300, got {rest[-1]!r}")
    return TtlRule(read_name_change(directive, [*rest[:-1], "."], answers=False), least, most)

"""``template CLASS TYPE [ZONE...]``: replies made from the name of the question. Pure.

Each template answers requests of its class, type and zones whose name a regular expression matches; without
``fallthrough`` a name of the zone that none matches is SERVFAIL. The records are zone file lines with actions in
``{{ }}`` (:mod:`podwire.dns.plugins.actions`). Cost: 100 to 200 us for a new question, because dnspython reads the
lines; the reply is kept by request.
"""

import re
from collections.abc import Iterator
from typing import Self

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, expression, record_class, record_type, response_code, zone_names
from podwire.dns.metrics import Series
from podwire.dns.names import decode_name, match_zone
from podwire.dns.plugins.actions import TemplateLine, TemplateValues, parse_line
from podwire.dns.plugins.ednsoptions import join_options
from podwire.dns.plugins.plugin import Handler, PluginReply, PluginRequest, PluginScope, Steps, refusal
from podwire.dns.plugins.zonetext import read_record
from podwire.dns.wire import ResourceRecord
from podwire.errors import ProtocolError

_EXTENDED_ERROR = 15
_CLASSES = {wire.IN: "IN", 3: "CH", 4: "HS", wire.CLASS_ANY: "ANY"}


class TemplateRule(msgspec.Struct, frozen=True):
    """One template; ``passes_on`` are the zones whose names go on to the next plugin when no expression matches."""

    zones: tuple[bytes, ...]
    qclass: int
    qtype: int
    patterns: tuple[re.Pattern[str], ...] = ()
    sections: dict[str, tuple[TemplateLine, ...]] = {}
    rcode: int = wire.NOERROR
    options: bytes = b""
    passes_on: tuple[bytes, ...] = ()
    line: int = 0

    def values(self, request: PluginRequest) -> TemplateValues | None:
        """The values for the lines; None when the template is not about the request."""
        query = request.query
        zone = match_zone(query.name, self.zones)
        if zone is None or self.qtype not in (query.qtype, wire.ANY):
            return None
        if self.qclass not in (query.qclass, wire.CLASS_ANY):
            return None
        name = decode_name(query.name).lower()
        match = next(filter(None, (pattern.search(name) for pattern in self.patterns)), None)
        if self.patterns and match is None:
            return TemplateValues(zone=decode_name(zone))
        return TemplateValues(
            zone=decode_name(zone),
            name=name,
            rclass=_CLASSES.get(query.qclass, str(query.qclass)),
            rtype=wire.TYPE_NAMES.get(query.qtype, f"TYPE{query.qtype}"),
            remote=request.client,
            matches=(match[0], *(text or "" for text in match.groups())) if match else (name,),
            groups={key: text or "" for key, text in match.groupdict().items()} if match else {},
            ident=query.id,
        )


class Template:
    """The templates of a server block, in order."""

    def __init__(self, rules: tuple[TemplateRule, ...]) -> None:
        self.rules = rules
        self._failures: dict[tuple[str, str, str, str, str, str], int] = {}
        lines = [line for rule in rules for section in rule.sections.values() for line in section]
        self.per_client = any(line.per_client for line in lines)

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin of all ``template`` directives."""
        return cls(tuple(_read_rule(directive, scope) for directive in directives))

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The reply of the first template that is about the request, or that of the following plugins."""
        query = request.query
        for rule in self.rules:
            values = rule.values(request)
            if values is None:
                continue
            if values.name:
                return (yield from self._reply(rule, values, request, following))
            if match_zone(query.name, rule.passes_on) is None:
                return refusal(query, wire.SERVFAIL, "template")
        return (yield from following(request))

    def series(self) -> Iterator[Series]:
        """How many lines failed, by template; matches are counted with the replies."""
        for (name, *values), count in tuple(self._failures.items()):
            labels = tuple(zip(("zone", "class", "type", "section", "template"), values, strict=True))
            yield name, labels, count

    def _records(
        self, values: TemplateValues, section: str, lines: tuple[TemplateLine, ...]
    ) -> tuple[ResourceRecord, ...]:
        """The records of a section.

        Raises: ProtocolError, counted, when a line gives no record.
        """
        records = []
        for line in lines:
            failing = "coredns_template_template_failures_total"
            try:
                text = line.render(values)
                failing = "coredns_template_rr_failures_total"
                records.append(read_record(text))
            except ProtocolError:
                key = (failing, values.zone, values.rclass, values.rtype, section, line.text)
                self._failures[key] = self._failures.get(key, 0) + 1
                raise
        return tuple(records)

    def _reply(self, rule: TemplateRule, values: TemplateValues, request: PluginRequest, following: Handler) -> Steps:
        query = request.query
        sections: dict[str, tuple[ResourceRecord, ...]] = {}
        try:
            for section, lines in rule.sections.items():
                sections[section] = self._records(values, section, lines)
        except ProtocolError:
            return msgspec.structs.replace(
                refusal(query, wire.SERVFAIL, "template"), template=(values.zone, values.rclass)
            )
        records = sections.get("answer", ())
        target = records[-1].names[0] if records and records[-1].type == wire.CNAME else b""
        if target and query.qtype in (wire.A, wire.AAAA) and target.lower() != query.name.lower():
            # As in CoreDNS, the records of an alias' target are added where they can be had.
            chased = (yield from following(request.renamed(target))).expanded()
            records += chased.answer.records
        answer = ZoneAnswer(
            rcode=rule.rcode,
            records=records,
            authority=sections.get("authority", ()),
            additional=sections.get("additional", ()),
        )
        return PluginReply(
            query, answer, options=rule.options, plugin="template", template=(values.zone, values.rclass)
        )


def _read_rule(directive: Directive, scope: PluginScope) -> TemplateRule:
    expect(len(directive.arguments) > 1, directive, "expected a class, a type, and zones")
    qclass, qtype, *zones = directive.arguments
    sections: dict[str, tuple[TemplateLine, ...]] = {}
    patterns: list[re.Pattern[str]] = []
    rule = TemplateRule(
        zone_names(directive, tuple(zones), scope.zones),
        record_class(directive, qclass),
        record_type(directive, qtype),
        line=directive.line,
    )
    for option in directive.block:
        match option.name, option.arguments:
            case "match", (_, *_):
                patterns += [expression(option, text) for text in option.arguments]
            case ("answer" | "authority" | "additional") as section, (text,):
                sections[section] = (*sections.get(section, ()), _read_line(option, text))
            case "rcode", (code,):
                rule = msgspec.structs.replace(rule, rcode=response_code(option, code))
            case "ederror", (code, *reason) if code.isdigit() and int(code) < 65536:
                data = int(code).to_bytes(2, "big") + " ".join(reason).encode()
                rule = msgspec.structs.replace(rule, options=join_options(((_EXTENDED_ERROR, data),)))
            case "fallthrough", names:
                rule = msgspec.structs.replace(rule, passes_on=zone_names(option, names, (b"\x00",)))
            case _:
                text = " ".join(option.arguments)
                raise option.wrong(f"podwire does not have this option of template, or not with {text!r}")
    for line in (line for lines in sections.values() for line in lines):
        _check_groups(directive, line, patterns)
    return msgspec.structs.replace(rule, patterns=tuple(patterns), sections=sections)


def _read_line(option: Directive, text: str) -> TemplateLine:
    try:
        return parse_line(text)
    except ProtocolError as failure:
        raise option.wrong(failure.problem) from failure


def _check_groups(directive: Directive, line: TemplateLine, patterns: list[re.Pattern[str]]) -> None:
    known = {name for pattern in patterns for name in pattern.groupindex}
    for name in line.groups:
        expect(name in known, directive, f"{line.text!r} uses the group {name!r}, which no expression of match has")

"""Which rules of the Corefile a name meets before the zone answers: views, access lists, rewrites, templates (pure).

The plugins are those that the server makes from the same directives, so a rule is explained by the rule itself.
"""

import msgspec

from podwire.dns import wire
from podwire.dns.config import DnsConfig, PluginBlock
from podwire.dns.corefile.syntax import Directive
from podwire.dns.names import decode_name, encode_name, match_zone
from podwire.dns.plugins.acl import AccessList
from podwire.dns.plugins.autopath import AutoPath
from podwire.dns.plugins.chain import make_chain
from podwire.dns.plugins.plugin import PluginRequest, PluginScope
from podwire.dns.plugins.rewrite import Rewrite
from podwire.dns.plugins.template import Template
from podwire.dns.wire import Query
from podwire.dns.zone import Zone
from podwire.errors import ProtocolError

_FIXED = ("hosts", "k8s_external", "file", "auto", "secondary")


class NameRules(msgspec.Struct, frozen=True):
    """What the rules make of a question: the name and type that the zone is asked for, and the rules, as text.

    ``end`` is set when a rule answers by itself: the outcome of the step. ``completed`` are the names that ``autopath``
    tries for the client.
    """

    name: str
    type: int
    texts: tuple[str, ...] = ()
    end: str = ""
    completed: tuple[str, ...] = ()


def apply_rules(name: str, qtype: int, config: DnsConfig, zone: Zone, client: str) -> NameRules:
    """The rules for a question of a client, whose address may be empty.

    Raises: ProtocolError when the text is no DNS name.
    """
    query = Query(0, wire.RD, encode_name(name), qtype, wire.IN)
    request = PluginRequest(query, client or "192.0.2.1")
    block, texts = _block(config, zone, request)
    if block is None:
        return NameRules(name, qtype, ("no server block of the Corefile has this name",), "refused")
    rules = NameRules(name, qtype, tuple(texts))
    chain = make_chain(block, _scope(block, config, zone))
    for plugin_name, plugin in chain.plugins.items():
        directives = [directive for directive in block.directives if directive.name == plugin_name]
        if isinstance(plugin, AccessList) and client:
            rules = _access(plugin, directives, request, rules)
        elif isinstance(plugin, Rewrite):
            request, rules = _rewrites(plugin, directives, request, rules)
        elif isinstance(plugin, AutoPath) and client:
            rules = _path(plugin, directives[0], request, rules)
        elif isinstance(plugin, Template):
            rules = _templates(plugin, directives, request, rules)
        elif plugin_name in _FIXED:
            rules = _zones(directives, request, rules)
        if rules.end:
            break
    return rules


def _scope(block: PluginBlock, config: DnsConfig, zone: Zone) -> PluginScope:
    return PluginScope(
        zones=tuple(map(encode_name, block.zones)),
        cluster=zone,
        domain=config.domain,
        pods=config.pods,
        files=config.files,
    )


def _block(config: DnsConfig, zone: Zone, request: PluginRequest) -> tuple[PluginBlock | None, list[str]]:
    """The server block that answers, and the views that decided."""
    texts: list[str] = []
    candidates: dict[bytes, list[PluginBlock]] = {}
    for block in config.blocks:
        for text in block.zones:
            candidates.setdefault(encode_name(text), []).append(block)
    name = match_zone(request.query.name, candidates)
    while name is not None:
        for block in candidates[name]:
            chain = make_chain(block, _scope(block, config, zone))
            if all(view.matches(request) for view in chain.views):
                texts += [f"view {view.name} matches" for view in chain.views]
                return block, texts
            texts += [f"view {view.name} does not match" for view in chain.views]
        name = match_zone(name[1 + name[0] :], candidates) if name[0] else None
    return None, texts


def _with_texts(rules: NameRules, *texts: str, end: str = "") -> NameRules:
    return msgspec.structs.replace(rules, texts=rules.texts + texts, end=end or rules.end)


def _at(directive: Directive) -> str:
    return f"{directive.source}, line {directive.line}: {' '.join((directive.name, *directive.arguments))}"


def _access(plugin: AccessList, directives: list[Directive], request: PluginRequest, rules: NameRules) -> NameRules:
    action = plugin.decide(request.query, request.client)
    if action == "allow":
        return rules
    outcome = {"block": "refused", "filter": "no data", "drop": "no reply"}[action]
    return _with_texts(rules, f"{_at(directives[0])}: {action} for {request.client}", end=outcome)


def _rewrites(
    plugin: Rewrite, directives: list[Directive], request: PluginRequest, rules: NameRules
) -> tuple[PluginRequest, NameRules]:
    """The rewritten request; each rule that changes it is named."""
    for (rule, goes_on), directive in zip(plugin.rules, directives, strict=True):
        changed = Rewrite(((rule, goes_on),)).change(request).request
        if changed == request:
            continue
        before, after = decode_name(request.query.name), decode_name(changed.query.name)
        text = f"{_at(directive)}: {before} becomes {after}" if before != after else _at(directive)
        request = changed
        rules = _with_texts(rules, text)
        if not goes_on:
            break
    name = decode_name(request.query.name).removesuffix(".")
    return request, msgspec.structs.replace(rules, name=name, type=request.query.qtype)


def _path(plugin: AutoPath, directive: Directive, request: PluginRequest, rules: NameRules) -> NameRules:
    names = tuple(decode_name(name).removesuffix(".") for name in plugin.names(request.query.name, request.client))
    if len(names) < 2:
        return rules
    text = f"{_at(directive)}: tries {', '.join(names[1:])} for {request.client}"
    return msgspec.structs.replace(_with_texts(rules, text), completed=names)


def _templates(plugin: Template, directives: list[Directive], request: PluginRequest, rules: NameRules) -> NameRules:
    for rule, directive in zip(plugin.rules, directives, strict=True):
        values = rule.values(request)
        if values is None:
            continue
        if values.name:
            outcome = "answer" if rule.sections.get("answer") else wire.RCODE_NAMES.get(rule.rcode, "answer")
            return _with_texts(
                rules, f"{_at(directive)} answers", end={"NXDOMAIN": "no such name"}.get(outcome, outcome)
            )
        if match_zone(request.query.name, rule.passes_on) is None:
            return _with_texts(
                rules, f"{_at(directive)}: no expression matches, and there is no fallthrough", end="failure"
            )
    return rules


def _zones(directives: list[Directive], request: PluginRequest, rules: NameRules) -> NameRules:
    """Names the plugins with zones of their own that have the name."""
    for directive in directives:
        texts = directive.arguments[1:] if directive.name in ("file", "hosts") else directive.arguments
        try:
            zones = tuple(encode_name(text.lower()) for text in texts)
        except ProtocolError:
            continue
        if zones and match_zone(request.query.name, zones) is not None:
            return _with_texts(rules, f"{_at(directive)} answers", end="answer")
    return rules

"""Replacements: ``proxy`` of CoreDNS becomes ``forward``, options ``transfer`` become the plugin ``transfer``. Pure."""

from collections.abc import Iterator

from podwire.upgrade.corefile import changes
from podwire.upgrade.corefile.document import CorefileDocument, Edit, Item, indentation

RENAMED_TRANSFER = frozenset(("kubernetes", "file", "auto", "secondary"))
"""The plugins whose option ``transfer to`` became the plugin ``transfer`` in 1.8.0."""


def replaced_proxy(document: CorefileDocument, plugin: Item) -> tuple[list[Edit], list[tuple[Item, str]]]:
    """The edits that make ``forward`` of ``proxy``, and the options without an equal with the reason."""
    line = document.lines[plugin.line]
    begin = line.index("proxy")
    edits = [Edit(plugin.line, plugin.line, (f"{line[:begin]}forward{line[begin + len('proxy') :]}",))]
    lost: list[tuple[Item, str]] = []
    for option in plugin.block:
        indent = indentation(document.lines[option.line])
        if option.name in changes.PROXY_OPTIONS:
            lost.append((option, changes.PROXY_OPTIONS[option.name]))
            edits.append(Edit(option.line, option.last_line))
        elif option.name == "policy" and option.arguments == ("least_conn",):
            lost.append((option, "forward has no policy least_conn; its default is random"))
            edits.append(Edit(option.line, option.last_line))
        elif option.name == "protocol":
            equal = _protocol(option.arguments)
            if not equal:
                lost.append((option, "forward chooses the protocol by the address, as in tls://192.0.2.1"))
            edits.append(Edit(option.line, option.last_line, tuple(f"{indent}{text}" for text in equal)))
    return edits, lost


def _protocol(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The option of ``forward`` for an option ``protocol`` of ``proxy``; none where there is no equal."""
    return ("force_tcp",) if arguments == ("dns", "force_tcp") else ()


def transfer_options(plugin: Item) -> tuple[Item, ...]:
    """The options ``transfer to`` of a plugin, which the plugin ``transfer`` replaces since 1.8.0."""
    if plugin.name not in RENAMED_TRANSFER:
        return ()
    return tuple(option for option in plugin.block if option.name == "transfer" and option.arguments[:1] == ("to",))


def replaced_transfer(document: CorefileDocument, plugin: Item, options: tuple[Item, ...]) -> tuple[list[Edit], str]:
    """The edits that make a plugin ``transfer`` of options ``transfer to``, and what they do."""
    zones = _zones(plugin)
    indent = indentation(document.lines[plugin.line])
    targets = " ".join(target for option in options for target in option.arguments[1:])
    removed = [Edit(option.line, option.last_line) for option in options]
    message = f"the option transfer of {plugin.name} was removed in 1.8.0; the plugin transfer replaces it"
    if any(other.name == "transfer" for other in _siblings(document, plugin)):
        return removed, f"{message}; the server block has that plugin already, make sure that it names {targets}"
    lines = (f"{indent}transfer{zones} {{", f"{indent}   to {targets}", f"{indent}}}")
    return [*removed, Edit(plugin.last_line + 1, plugin.last_line, lines)], message


def _siblings(document: CorefileDocument, plugin: Item) -> Iterator[Item]:
    for block in (document.items, *(item.block for item in document.items)):
        if plugin in block:
            yield from block


def _zones(plugin: Item) -> str:
    """The zones of the plugin ``transfer`` with a blank before them; empty: those of the server block."""
    if plugin.name == "kubernetes":
        return f" {plugin.arguments[0]}" if plugin.arguments else ""
    arguments = plugin.arguments[1:] if plugin.name == "file" else plugin.arguments
    return "".join(f" {zone}" for zone in arguments)

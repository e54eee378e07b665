"""Migrates a Corefile from one release of CoreDNS to another, up or down. Pure.

The migration changes only lines that the target release refuses or ignores, and keeps all other lines as they are:

1. The versions are mapped to releases; a custom tag such as ``1.6.2-100`` to the nearest release, with a warning.
2. A plugin or option that the target refuses is replaced where a replacement means the same (``proxy`` by ``forward``,
   ``transfer`` of ``kubernetes`` by the plugin ``transfer``), else removed. An option without an effect is removed.
3. Going up, ``ready`` is added beside ``kubernetes`` where it became necessary in between; other lines that the stock
   Corefile got in between only on request.
4. A plugin that no release has comes from a custom build: it stays, with a warning.

Unlike with kubeadm, only the target release decides: a plugin that a release in between deprecates causes no finding
when the target has it, and equal versions cause no finding but for lines that the release itself refuses.
"""

import difflib
from collections.abc import Iterator

import msgspec

from podwire.errors import ConfigError
from podwire.upgrade.corefile import changes
from podwire.upgrade.corefile.document import CorefileDocument, Edit, Item, edited, indentation, parse_document
from podwire.upgrade.corefile.releases import (
    OPTIONS,
    PLUGINS,
    RELEASES,
    accepts_option,
    has_plugin,
    nearest_release,
    numbers,
)
from podwire.upgrade.corefile.replacements import replaced_proxy, replaced_transfer, transfer_options
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.plan.versions import parse_version

_TRANSFER_PLUGIN = "1.8.0"
"""The release in which the plugin ``transfer`` replaced the options ``transfer to``."""
_SEVERAL_FORWARDS = "1.9.4"
"""The first release that accepts several ``forward`` in a server block."""


class CorefileMigration(msgspec.Struct, frozen=True):
    """A migrated Corefile."""

    text: str
    diff: str
    """A unified diff; empty: nothing changes."""
    findings: tuple[UpgradeFinding, ...]
    from_release: str
    to_release: str

    @property
    def changed(self) -> bool:
        """Whether the text differs from the original."""
        return bool(self.diff)


class CorefileJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to migrate; ``object`` names the ConfigMap in findings and ``key`` its key."""

    object: str = "ConfigMap kube-system/coredns"
    key: str = "Corefile"
    from_version: str
    to_version: str
    defaults: bool = False
    """Whether to add all lines that the stock Corefile got between the releases."""
    fragment: bool = False
    """Whether the text is directives that a server block imports, not server blocks."""


def migrate(text: str, job: CorefileJob) -> CorefileMigration:
    """The Corefile for the target version.

    A text that cannot be parsed stays as it is, with a blocker that names the line.
    """
    versions = [_release_of(version, job) for version in (job.from_version, job.to_version)]
    (source, _), (target, _) = versions
    findings = [finding for _, finding in versions if finding is not None]
    try:
        document = parse_document(text, job.key)
        migrator = _Migrator(document, job, source, target)
        edits = migrator.edits()
    except ConfigError as failure:
        remedy = "correct the Corefile first; the migration leaves it as it is"
        field = f"data.{job.key}: {failure.path}" if failure.path else f"data.{job.key}"
        blocker = UpgradeFinding(
            severity="blocker", object=job.object, field=field, message=failure.problem, remedy=remedy
        )
        return CorefileMigration(text, "", (*findings, blocker), source, target)
    result = edited(document, edits)
    before, after = f"{job.key} (CoreDNS {source})", f"{job.key} (CoreDNS {target})"
    lines = difflib.unified_diff(text.splitlines(), result.splitlines(), before, after, lineterm="")
    diff = "".join(f"{line}\n" for line in lines) if result != text else ""
    return CorefileMigration(result, diff, (*findings, *migrator.findings), source, target)


def refused_lines(text: str, version: str, key: str = "Corefile") -> tuple[str, ...]:
    """The plugins and options, each with its line, that a release refuses; plugins of custom builds are not among them.

    Raises: ConfigError when the text cannot be parsed.
    """
    release = _nearest(version)
    refused = []
    for item in _plugins(parse_document(text, key), fragment=not key.endswith((".server", "Corefile"))):
        if not has_plugin(item.name, release):
            refused.append(f"line {item.line + 1}: {item.name}")
            continue
        options = (option for option in item.block if not accepts_option(item.name, option.name, release))
        refused += [f"line {option.line + 1}: {item.name} {option.name}" for option in options]
    return tuple(refused)


def _nearest(text: str) -> str:
    version = parse_version(text)
    return nearest_release(version) if version is not None else RELEASES[-1]


def _release_of(text: str, job: CorefileJob) -> tuple[str, UpgradeFinding | None]:
    """The release of a version, and a finding where the version is none."""
    version = parse_version(text)
    release = _nearest(text)
    if version is None:
        message = f"the version {text!r} of CoreDNS is not known; the file is checked as for {release}"
        remedy = "check the migrated file with the real program"
        return release, UpgradeFinding(severity="warning", object=job.object, message=message, remedy=remedy)
    if version.addition or version.release != numbers(release):
        message = f"CoreDNS {text} is a custom build or newer than {RELEASES[-1]}; the rules of {release} are used"
        remedy = "check plugins that were added to or left out of the build"
        return release, UpgradeFinding(severity="warning", object=job.object, message=message, remedy=remedy)
    return release, None


def _plugins(document: CorefileDocument, *, fragment: bool) -> Iterator[Item]:
    """The directives of server blocks and snippets; those of a fragment are its own items."""
    for block in document.items:
        if fragment:
            yield block
        elif block.name != "import":
            yield from block.block


class _Migrator:
    def __init__(self, document: CorefileDocument, job: CorefileJob, source: str, target: str) -> None:
        self._document = document
        self._job = job
        self._source, self._target = source, target
        self.findings: list[UpgradeFinding] = []
        self._unknown: set[str] = set()

    def edits(self) -> list[Edit]:
        if self._job.fragment:
            return self._edits_of(self._document.items)
        edits = []
        for block in self._document.items:
            if block.name != "import":
                edits += self._edits_of(block.block)
                edits += self._new_plugins(block)
        return edits

    def _edits_of(self, plugins: tuple[Item, ...]) -> list[Edit]:
        forwards = [plugin for plugin in plugins if plugin.name in ("forward", "proxy")]
        if len(forwards) > 1 and numbers("1.5.0") <= numbers(self._target) < numbers(_SEVERAL_FORWARDS):
            message = f"CoreDNS accepts several forward in a server block since {_SEVERAL_FORWARDS}, not {self._target}"
            self._find("blocker", forwards[1], message, "give each stub domain a server block of its own")
        return [edit for plugin in plugins if plugin.name != "import" for edit in self._plugin(plugin)]

    def _plugin(self, plugin: Item) -> list[Edit]:
        name = plugin.name
        self._note(plugin)
        if not has_plugin(name, self._target):
            if name == "proxy":
                edits, lost = replaced_proxy(self._document, plugin)
                self._find("warning", plugin, f"proxy was removed in {PLUGINS[name][1]}; forward replaces it")
                for option, reason in lost:
                    self._find("warning", option, f"the option {option.name} of proxy has no equal: {reason}")
                return edits
            self._find("warning", plugin, f"CoreDNS {self._target} has no plugin {name}; the lines are removed")
            return [_removed(plugin)]
        if name not in PLUGINS and name not in self._unknown:
            self._unknown.add(name)
            message = f"no release of CoreDNS has the plugin {name}; it stays as it is"
            self._find("warning", plugin, message, f"make sure that the image of {self._target} was built with it")
        edits = []
        transfers = transfer_options(plugin) if numbers(self._target) >= numbers(_TRANSFER_PLUGIN) else ()
        if transfers:
            edits, message = replaced_transfer(self._document, plugin, transfers)
            self._find("warning", transfers[0], message)
        edits += [edit for option in plugin.block if option not in transfers for edit in self._option(plugin, option)]
        return edits + self._new_options(plugin)

    def _option(self, plugin: Item, option: Item) -> list[Edit]:
        name = (plugin.name, option.name)
        if not accepts_option(*name, self._target):
            return self._refused_option(plugin, option)
        ignored = changes.IGNORED.get(name)
        if ignored is not None and numbers(ignored) <= numbers(self._target):
            self._find("info", option, f"{' '.join(name)} has no effect since {ignored}; the line is removed")
            return [_removed(option)]
        if name == ("kubernetes", "endpoint") and len(option.arguments) > 1:
            return self._single_endpoint(option)
        return []

    def _refused_option(self, plugin: Item, option: Item) -> list[Edit]:
        known = option.name in _options_ever(plugin.name)
        text = f"{plugin.name} {option.name}"
        if option.name == "no_reload":
            self._find("warning", option, f"{text} was removed in 1.5.0; `reload 0` replaces it")
            line = self._document.lines[option.line]
            return [Edit(option.line, option.last_line, (f"{indentation(line)}reload 0",))]
        if not known:
            message = f"{text} is no option of CoreDNS {self._target}, which ends at its start; the line stays"
            self._find("warning", option, message, "remove the line unless the image was built with the option")
            return []
        self._find("warning", option, f"CoreDNS {self._target} refuses {text}; the line is removed")
        return [_removed(option)]

    def _single_endpoint(self, option: Item) -> list[Edit]:
        if numbers(self._target) < numbers("1.4.0"):
            return []
        self._find("info", option, "kubernetes endpoint uses only its first address since 1.4.0; the rest is removed")
        line = self._document.lines[option.line]
        return [Edit(option.line, option.last_line, (f"{indentation(line)}endpoint {option.arguments[0]}",))]

    def _note(self, plugin: Item) -> None:
        for note in changes.BEHAVIOUR:
            alone = note.plugin == "forward" and _single_upstream(plugin)
            if note.plugin == plugin.name and self._between(note.release) and not alone:
                self._find("info", plugin, f"since CoreDNS {note.release} {note.text}", note.remedy)

    def _new_options(self, plugin: Item) -> list[Edit]:
        present = {option.name for option in plugin.block}
        lines = [
            default.line
            for default in changes.NEW_DEFAULTS
            if default.plugin == plugin.name and self._adds(default) and default.line.split()[0] not in present
        ]
        if not lines:
            return []
        self._find("info", plugin, f"adds {', '.join(lines)} to {plugin.name}, as the stock Corefile has")
        first = self._document.lines[plugin.line]
        indent = indentation(first)
        added = tuple(f"{indent}   {line}" for line in lines)
        if plugin.opened:
            return [Edit(plugin.last_line, plugin.last_line - 1, added)]
        end = plugin.tokens[-1].end
        opened = f"{first[:end]} {{{first[end:]}"
        return [Edit(plugin.line, plugin.last_line, (opened, *added, f"{indent}}}"))]

    def _new_plugins(self, block: Item) -> list[Edit]:
        present = {plugin.name for plugin in block.block}
        edits = []
        for default in changes.NEW_DEFAULTS:
            if default.plugin or not self._adds(default) or default.line in present:
                continue
            beside = next((plugin for plugin in block.block if plugin.name in default.beside), None)
            if beside is not None:
                self._find("info", beside, f"adds the plugin {default.line}, as the stock Corefile has")
                line = f"{indentation(self._document.lines[beside.line])}{default.line}"
                edits.append(Edit(beside.line, beside.line - 1, (line,)))
        return edits

    def _adds(self, default: changes.NewDefault) -> bool:
        return self._between(default.release) and (self._job.defaults or default.line in changes.NEEDED)

    def _between(self, release: str) -> bool:
        """Whether the release is newer than the source and not newer than the target."""
        return numbers(self._source) < numbers(release) <= numbers(self._target)

    def _find(self, severity: str, item: Item, message: str, remedy: str = "") -> None:
        field = f"data.{self._job.key}: line {item.line + 1}"
        finding = {"severity": severity, "object": self._job.object, "field": field}
        self.findings.append(msgspec.convert({**finding, "message": message, "remedy": remedy}, UpgradeFinding))


def _single_upstream(plugin: Item) -> bool:
    """Whether ``forward`` has one upstream; a file such as /etc/resolv.conf may have several."""
    upstreams = plugin.arguments[1:]
    return len(upstreams) == 1 and not upstreams[0].startswith("/")


def _removed(item: Item) -> Edit:
    return Edit(item.line, item.last_line)


def _options_ever(plugin: str) -> frozenset[str]:
    return frozenset(OPTIONS.get(plugin, {}))

"""``auto [ZONE...] { directory FOLDER [PATTERN ORIGIN] }``: a zone for each zone file in a folder. Pure.

The files are read with the Corefile: a new or changed file counts when the plugin ``reload`` reads it again. Without a
pattern, ``db.example.org`` has the zone ``example.org``.
"""

from pathlib import PurePosixPath
from typing import Self

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, expression, zone_name, zone_names
from podwire.dns.names import match_zone
from podwire.dns.plugins.file import answer_from, load_zone
from podwire.dns.plugins.plugin import Handler, PluginRequest, PluginScope, Steps
from podwire.dns.plugins.staticzone import StaticZone

_PATTERN, _ORIGIN = r"db\.(.*)", "{1}"


class ZoneFolder:
    """The zones of the files in folders."""

    per_client = False

    def __init__(self, zones: dict[bytes, StaticZone]) -> None:
        self._zones = zones

    @classmethod
    def read(cls, directives: tuple[Directive, ...], scope: PluginScope) -> Self:
        """The plugin; files whose name does not match, or whose zone is no zone of the directive, are left out."""
        zones: dict[bytes, StaticZone] = {}
        for directive in directives:
            allowed = zone_names(directive, directive.arguments, scope.zones)
            expect(bool(directive.block), directive, "expected directory and a folder")
            for option in directive.block:
                expect(option.name == "directory", option, "podwire does not have this option of auto")
                expect(len(option.arguments) in (1, 3), option, "expected a folder, or a folder, a pattern and a zone")
                zones |= _read_folder(option, allowed, scope)
        return cls(zones)

    @property
    def origins(self) -> tuple[bytes, ...]:
        """The names of the zones."""
        return tuple(self._zones)

    def handle(self, request: PluginRequest, following: Handler) -> Steps:
        """The answer of the zone with the longest name, or that of the following plugins."""
        return (yield from answer_from(self._zones, (), request, following))


def _read_folder(option: Directive, allowed: tuple[bytes, ...], scope: PluginScope) -> dict[bytes, StaticZone]:
    folder, pattern, origin = (*option.arguments, _PATTERN, _ORIGIN)[:3]
    compiled = expression(option, pattern)
    zones: dict[bytes, StaticZone] = {}
    for path, text in sorted(scope.files.items()):
        match = compiled.search(PurePosixPath(path).name)
        if str(PurePosixPath(path).parent) != folder.rstrip("/") or match is None:
            continue
        name = origin
        for index, group in enumerate((match[0], *match.groups())):
            name = name.replace(f"{{{index}}}", group or "").replace(f"${{{index}}}", group or "")
        zone = zone_name(option, name)
        if match_zone(zone, allowed) is not None:
            zones[zone] = load_zone(option, text, zone)
    return zones

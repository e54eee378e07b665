"""Migrations of random Corefiles: never an exception, stable when repeated, accepted by the target."""

from hypothesis import given
from hypothesis import strategies as st

from podwire.upgrade.corefile.migrate import CorefileJob, migrate, refused_lines
from podwire.upgrade.corefile.releases import OPTIONS, PLUGINS, RELEASES

RELEASE = st.sampled_from(RELEASES)


@st.composite
def directives(draw: st.DrawFn) -> str:
    """A directive of a known plugin with known options."""
    plugin = draw(st.sampled_from([name for name in PLUGINS if name not in ("import", "forward", "proxy")]))
    options = draw(st.lists(st.sampled_from(sorted(OPTIONS.get(plugin, {"x": ()}))), max_size=3))
    argument = draw(st.sampled_from(("", " cluster.local", " . 192.0.2.1", ' "a b"')))
    comment = draw(st.sampled_from(("", "  # comment", " #x {")))
    if not options:
        return f"    {plugin}{argument}{comment}"
    lines = [f"        {option} to 192.0.2.1" if option == "transfer" else f"        {option}" for option in options]
    return "\n".join((f"    {plugin}{argument} {{{comment}", *lines, "    }"))


COREFILES = st.lists(directives(), max_size=6).map(lambda lines: "\n".join((".:53 {", *lines, "}", "")))


@given(COREFILES, RELEASE, RELEASE, st.booleans())
def test_migrated_file_is_accepted_and_stays_when_repeated(text: str, before: str, after: str, defaults: bool) -> None:
    job = CorefileJob(from_version=before, to_version=after, defaults=defaults)
    migration = migrate(text, job)
    assert not [finding for finding in migration.findings if finding.severity == "blocker"]
    assert refused_lines(migration.text, after) == ()
    assert migrate(migration.text, job).text == migration.text
    assert migrate(migration.text, CorefileJob(from_version=after, to_version=after)).diff == ""


@given(COREFILES, RELEASE)
def test_lines_that_the_release_accepts_stay(text: str, release: str) -> None:
    migration = migrate(text, CorefileJob(from_version=release, to_version=release))
    gone = {line.split(":")[0] for line in refused_lines(text, release)}
    if not gone and not migration.findings:
        assert migration.text == text


@given(st.text(alphabet=' \t\r\n{}#"\\abc.$%()', max_size=80), RELEASE, st.booleans())
def test_any_text_is_migrated_or_refused_with_its_line(text: str, after: str, fragment: bool) -> None:
    migration = migrate(text, CorefileJob(from_version="1.1.3", to_version=after, fragment=fragment))
    blockers = [finding for finding in migration.findings if finding.severity == "blocker"]
    assert migration.text == text
    assert all("data.Corefile: line" in finding.field for finding in blockers)

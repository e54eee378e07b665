"""The words, blocks, snippets and files of a Corefile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import Directive, ServerBlock, parse_corefile
from podwire.errors import ConfigError, ConfigErrors

FILES = {"more.conf": "errors\n", "b.server": "b.example {\n errors\n}\n"}


def parse(text: str, **environment: str) -> tuple[ServerBlock, ...]:
    def read_files(pattern: str) -> dict[str, str]:
        suffix = pattern.removeprefix("*")
        return {name: body for name, body in FILES.items() if name == pattern or ("*" in pattern and suffix in name)}

    return parse_corefile(text, "Corefile", environment, read_files)


def test_directives_have_arguments_blocks_and_lines() -> None:
    text = (
        '# head\na.example:53, b.example {\n  errors # tail\n  log "two words" x\n\n  cache 30 {\n    ttl 5\n  }\n}\n'
    )
    (block,) = parse(text)
    assert block.zones == ("a.example:53", "b.example") and block.line == 2
    assert block.directives == (
        Directive("errors", (), "Corefile", 3),
        Directive("log", ("two words", "x"), "Corefile", 4),
        Directive("cache", ("30",), "Corefile", 6, (Directive("ttl", ("5",), "Corefile", 7),)),
    )


def test_brace_may_stand_on_its_own_line() -> None:
    assert parse(".\n{\n errors\n}\n")[0].directives[0].name == "errors"


def test_variables_come_from_the_environment() -> None:
    (block,) = parse(".:{$PORT} {\n forward . {%SERVER%} {$NONE}\n}\n", PORT="53", SERVER="192.0.2.1")
    assert block.zones == (".:53",) and block.directives[0].arguments == (".", "192.0.2.1", "")


def test_snippets_and_files_are_inserted() -> None:
    text = "(common) {\n errors\n import more.conf\n}\n. {\n import common\n loop\n import *.none\n}\nimport *.server\n"
    first, second = parse(text)
    assert [directive.name for directive in first.directives] == ["errors", "errors", "loop"]
    assert second.zones == ("b.example",) and second.source == "b.server"


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        (". {\n errors\n", "line 1", "expected } that closes '.'"),
        ("# x\n.\nerrors\n", "line 2", "expected { after '.'"),
        ('. {\n log "x\n}\n', "line 2", "expected a closing quote"),
        (". {\n import nothing\n}\n", "line 2: import", "expected a snippet or a file, got 'nothing'"),
        (". {\n import\n}\n", "line 2: import", "expected one snippet or file"),
        ("(a) {\n import a\n}\n. {\n import a\n}\n", "line 2: import", "do they form a loop"),
    ],
)
def test_wrong_syntax_is_named_with_its_line(text: str, where: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="Corefile") as raised:
        parse(text)
    assert raised.value.path == where and problem in raised.value.problem


_WORDS = (
    ".:53", "{", "}", "\n", '"', "#", "import", "snippet", "(snippet)", "{$HOME}", "forward", ".", "192.0.2.1", "view",
    "kubernetes", "cluster.local", "rewrite", "name", "regex", "(", "template", "IN", "A", "acl", "block", "net",
    "cache", "hosts", "autopath", "@kubernetes", "dns64", "transfer", "to", "*", "answer", "{{", ".Name", "}}",
    "expr", "type()",
)  # fmt: skip


@given(st.lists(st.sampled_from(_WORDS), max_size=30))
def test_any_text_is_settings_or_errors_with_lines(texts: list[str]) -> None:
    text = " ".join(texts)
    try:
        read_settings(parse_corefile(text, "Corefile", {}, lambda _: {}), "Corefile", lambda _: {})
    except ConfigErrors as failures:
        assert all(failure.source == "Corefile" for failure in failures.failures)
    except ConfigError as failure:
        assert failure.source == "Corefile"


@given(st.text(max_size=200))
def test_any_characters_are_a_corefile_or_an_error(text: str) -> None:
    try:
        parse_corefile(text, "Corefile", {}, lambda _: {})
    except ConfigError as failure:
        assert failure.path.startswith("line ")

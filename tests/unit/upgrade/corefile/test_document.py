import pytest
from tests.unit.upgrade.corefile_texts import CHANGED, K3S, KUBEADM_1_12, KUBEADM_1_35

from podwire.dns.corefile.syntax import parse_corefile
from podwire.errors import ConfigError
from podwire.upgrade.corefile.document import Edit, edited, parse_document, walk


@pytest.mark.parametrize(
    "text", [KUBEADM_1_12, KUBEADM_1_35, K3S, CHANGED, "", "# nothing\n", ".:53 {\r\n  errors\r\n}\r\n"]
)
def test_text_survives_parsing(text: str) -> None:
    document = parse_document(text, "Corefile")
    assert document.text == text
    assert edited(document, ()) == text


def test_tree_has_blocks_directives_and_options() -> None:
    blocks = parse_document(CHANGED, "Corefile").items
    assert [block.name for block in blocks] == ["(logging)", ".:53", "corp.example:53"]
    kubernetes = next(item for item in blocks[1].block if item.name == "kubernetes")
    assert [option.name for option in kubernetes.block] == ["endpoint", "pods", "ttl"]
    assert kubernetes.arguments == ("cluster.local", "in-addr.arpa", "ip6.arpa")


@pytest.mark.parametrize("text", [KUBEADM_1_12, KUBEADM_1_35, CHANGED.replace("import logging", "")])
def test_tree_agrees_with_the_parser_of_the_dns_server(text: str) -> None:
    blocks = [item for item in parse_document(text, "Corefile").items if not item.name.startswith("(")]
    parsed = parse_corefile(text, "Corefile", {"TABLE": "{$TABLE}"}, lambda name: {})
    assert [[(d.name, d.arguments, d.line) for d in b.directives] for b in parsed] == [
        [(i.name, tuple(a.strip('"') for a in i.arguments), i.line + 1) for i in b.block] for b in blocks
    ]


def test_quoted_word_may_have_blanks_and_line_ends() -> None:
    text = '. {\n  template ANY ANY {\n    answer "a {{ .Name }}\n b"\n  }\n  log\n}\n'
    items = parse_document(text, "Corefile").items
    assert [item.name for item in walk(items)] == [".", "template", "answer", "log"]
    assert items[0].block[1].line == 5


def test_brace_may_stand_on_the_next_line() -> None:
    items = parse_document(".:53\n{\n  errors\n}\n", "Corefile").items
    assert [item.name for item in items[0].block] == ["errors"]
    assert items[0].last_line == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (".:53 {\n  errors\n", "line 1: expected } that closes '.:53'"),
        (".:53 {\n}\n}\n", "line 3: expected no } here"),
        ('.:53 {\n  log "x\n}\n', "line 2: expected a closing quote"),
        ("{\n  errors\n}\n", "line 1: expected a name before {"),
        (".:53 {\n  a {\n  } b\n}\n", "line 3: expected a line end after }, got 'b'"),
        ("a {\n" * 30 + "}\n" * 30, "expected at most 20 levels"),
        ("a {\n" * 30000, "expected at most 20 levels"),
    ],
)
def test_broken_text_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "Corefile")
    assert problem in str(caught.value)


def test_edits_leave_all_other_lines() -> None:
    document = parse_document("a {\n  b\n  c # kept\n}\n", "Corefile")
    assert edited(document, [Edit(1, 1), Edit(3, 2, ("  d",))]) == "a {\n  c # kept\n  d\n}\n"

from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.local.manifests import in_order, parse_manifests, read_manifests

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"


def test_documents_keep_file_and_line() -> None:
    found = parse_manifests(f"# first\n{POD}---\n---\n{NAMESPACE}", "app.yaml")
    assert [(m.source, m.name) for m in found] == [("app.yaml:2", "Pod shop/p"), ("app.yaml:7", "Namespace shop")]


def test_lists_are_opened_up() -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n"
    assert [m.name for m in parse_manifests(text, "l.yaml")] == ["Pod a"]


def test_namespaces_come_first() -> None:
    found = in_order(parse_manifests(f"{POD}---\n{NAMESPACE}", "app.yaml"))
    assert [m.kind for m in found] == ["Namespace", "Pod"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "m.yaml:2: not YAML"),
        ("a: b: c", "m.yaml:1: not YAML: mapping values are not allowed"),
        ("- 1\n", "m.yaml:1: expected an object with apiVersion and kind, found a list"),
        ("kind: Pod\nmetadata: {name: x}\n", "m.yaml:1: apiVersion: expected a text, found nothing"),
        ("apiVersion: 1\nkind: Pod\n", "m.yaml:1: apiVersion: expected a text, found 1"),
        ("apiVersion: v1\nkind: Pod\n", "m.yaml:1: metadata.name: expected a name"),
        ("apiVersion: v1\nkind: Pod\nmetadata: []\n", "m.yaml:1: metadata.name: expected a name"),
        (f"{POD}---\nkind: Pod\n", "m.yaml:5: apiVersion: expected a text, found nothing"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_manifests(text, "m.yaml")
    assert message in str(caught.value)


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(POD)
    (tmp_path / "a.yml").write_text(NAMESPACE)
    (tmp_path / "notes.txt").write_text("not a manifest")
    assert [m.kind for m in read_manifests((str(tmp_path),))] == ["Namespace", "Pod"]


def test_an_empty_folder_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file here ends in"):
        read_manifests((str(tmp_path),))
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_manifests((str(tmp_path / "gone.yaml"),))

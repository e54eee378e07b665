import io
from pathlib import Path

import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.local.manifests import ManifestLines, in_order, parse_manifests, read_manifests
from podwire.model.meta import ObjectMeta
from podwire.model.policy import NetworkPolicy

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"


def test_documents_keep_file_and_line() -> None:
    result = parse_manifests(f"# first\n{POD}---\n---\n{NAMESPACE}", "app.yaml")
    assert [(m.source, m.name) for m in result] == [("app.yaml:2", "Pod shop/p"), ("app.yaml:7", "Namespace shop")]


def test_lists_are_opened_up() -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n"
    assert [m.name for m in parse_manifests(text, "l.yaml")] == ["Pod a"]


FIELDS = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  annotations: {a.b/c: d}
spec:
  podSelector: {}
  ingress:
  - from:
    - podSelector: {matchLabels: {app: web}}
    - &other
      namespaceSelector:
        matchLabels:
          team: a
    ports: [
      {port: 80},
      {port: 81}]
  - from:
    - *other
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("metadata.annotations[a.b/c]", 6),
        ("spec.ingress[0]", 10),
        ("spec.ingress[0].from[1].namespaceSelector.matchLabels.team", 15),
        ("spec.ingress[0].ports[1].port", 18),
        ("spec.ingress[1].from[0].namespaceSelector", 13),
        ("spec.ingress[1].from[3].ipBlock", 19),
        ("spec.policyTypes[0]", 7),
    ],
)
def test_fields_have_lines(path: str, line: int) -> None:
    (result,) = parse_manifests(FIELDS, "p.yaml")
    assert result.at(path) == f"p.yaml:{line}"


def test_items_of_lists_and_json_have_lines() -> None:
    pod = '{"apiVersion": "v1",\n"kind": "Pod",\n"metadata": {"name": "a"}}'
    text = f'{{"apiVersion": "v1", "kind": "List", "items": [\n{pod}]}}'
    (result,) = parse_manifests(text, "p.json")
    assert (result.source, result.at("metadata.name")) == ("p.json:2", "p.json:4")


def test_namespaces_come_first() -> None:
    result = in_order(parse_manifests(f"{POD}---\n{NAMESPACE}", "app.yaml"))
    assert [m.kind for m in result] == ["Namespace", "Pod"]


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
        ("only words", "m.yaml:1: expected an object with apiVersion and kind, found a text"),
        (
            "kind: List\napiVersion: v1\nitems: [5]",
            "m.yaml:3: expected an object with apiVersion and kind, found a number",
        ),
        (
            f"{POD}spec:\n  a: [{{b: 1}}, {{c: 1,\n c: 2}}]\n",
            "m.yaml:6: spec.a[1].c: is set twice; the first time in line 5",
        ),
        (
            "metadata: {name: {{ .Values.name }}}",
            "m.yaml:1: metadata.name: expected a string as the name of a field; templates",
        ),
        ("name: {{ .Values.name }", "; templates are not rendered here"),
        ("a: {~: b}", "m.yaml:1: a: expected a string as the name of a field"),
        ("a: &a [*a]", "too deep, or contain themselves"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "aliases repeat too much",
        ),
        (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
            "give what `kubectl kustomize .` prints",
        ),
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


def test_aliases_and_merged_keys_are_read() -> None:
    (result,) = parse_manifests(f"{POD}a: &a {{x: 1, y: 2}}\nb: {{<<: *a, y: 3}}\nc: [*a, *a]\n", "a.yaml")
    assert result.body["b"] == {"x": 1, "y": 3}


def test_names_that_are_numbers_are_text() -> None:
    (result,) = parse_manifests(f"{POD}labels: {{8080: a, true: b, 1.5: c, '7': d}}\n", "a.yaml")
    assert result.body["labels"] == {"8080": "a", "true": "b", "1.5": "c", "7": "d"}


def test_folders_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in" / "b.yaml").mkdir(parents=True)
    (tmp_path / "in" / "a.yaml").write_text(POD)
    with pytest.raises(ConfigError, match=r"no file here ends in .*, and folders in it are not read"):
        read_manifests((str(tmp_path),))
    assert [m.source for m in read_manifests((str(tmp_path),), recursive=True)] == [f"{tmp_path}/in/a.yaml:1"]


@pytest.mark.parametrize(
    ("name", "tool"), [("kustomization.yaml", "kubectl kustomize"), ("Chart.yaml", "helm template")]
)
def test_what_others_build_is_refused_with_the_command(tmp_path: Path, name: str, tool: str) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / name).write_text("resources: [pod.yaml]")
    with pytest.raises(ConfigError, match=f"{name}: .* `{tool} {tmp_path}`"):
        read_manifests((str(tmp_path),))


def test_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        read_manifests((str(tmp_path),))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert [m.source for m in read_manifests(("-", "-"))] == ["stdin:1"]


def test_an_empty_folder_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file here ends in"):
        read_manifests((str(tmp_path),))
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_manifests((str(tmp_path / "gone.yaml"),))


def test_files_that_say_something_else_than_the_cluster() -> None:
    written = ManifestLines(
        parse_manifests(FIELDS.replace("  name: db\n", "  name: db\n  namespace: shop\n"), "p.yaml")
    )
    (result,) = parse_manifests(FIELDS, "p.yaml")
    meta = ObjectMeta(name="db", namespace="shop")
    live = msgspec.structs.replace(msgspec.convert(result.body, NetworkPolicy), metadata=meta)
    defaulted = msgspec.structs.replace(live, spec=msgspec.structs.replace(live.spec, policy_types=("Ingress",)))
    changed = msgspec.structs.replace(live, spec=msgspec.structs.replace(live.spec, ingress=()))
    assert list(written.different([defaulted])) == []
    (note,) = written.different([changed])
    assert note.startswith("NetworkPolicy shop/db in p.yaml:2 differs from the cluster's object")
    assert written.line("NetworkPolicy", "shop/db", "spec") == "p.yaml:8"
    assert written.line("NetworkPolicy", "shop/other", "spec") == ""


def test_line_is_found_for_manifests_without_namespace() -> None:
    written = ManifestLines(parse_manifests(FIELDS, "p.yaml"))
    assert written.line("NetworkPolicy", "shop/db", "spec.ingress[0]") == "p.yaml:10"

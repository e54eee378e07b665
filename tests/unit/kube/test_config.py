"""Kubeconfig files and the in-cluster environment."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwire.errors import ConfigError
from podwire.kube.config import in_cluster, load, load_kubeconfig

JsonObject = dict[str, Any]


def kubeconfig(
    tmp_path: Path, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any
) -> Path:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://h:1"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    } | top
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def test_inline_data_and_files(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(b"KEY")
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key": "key.pem", "token": "t"}
    config = load_kubeconfig(kubeconfig(tmp_path, user=user))
    assert (config.server, config.certificate, config.key) == ("https://h:1", b"CERT", b"KEY")
    assert (config.token, config.namespace) == ("t", "n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": ""}, "expected the name of a context, got none"),
        ({"current-context": "x"}, "no entry named 'x'"),
        ({"cluster": {"server": "h:1"}}, "expected an http"),
        ({"user": {"exec": {"command": "x"}}}, r"users\.user\.exec\.apiVersion: expected client\.authentication"),
        ({"user": {"exec": []}}, r"users\.user\.exec: expected a mapping"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, r"users\.user\.auth-provider: is not supported"),
        ({"cluster": {"certificate-authority": "missing"}}, "cannot be read"),
        ({"cluster": {"certificate-authority-data": "%%"}}, "cannot be read"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_kubeconfig(kubeconfig(tmp_path, **change))


def test_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("{")
    with pytest.raises(ConfigError):
        load_kubeconfig(path)


def test_in_cluster(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    (tmp_path / "namespace").write_text("kube-system")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = in_cluster(environ, tmp_path)
    assert (config.server, config.namespace, config.ca) == ("https://[fd00::1]:443", "kube-system", b"CA")
    with pytest.raises(ConfigError, match="not a pod"):
        in_cluster({}, tmp_path)


def test_the_argument_wins_over_the_environment(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    assert load(path, {"KUBECONFIG": "/nope"}).server == "https://h:1"
    assert load(None, {"KUBECONFIG": str(path)}).server == "https://h:1"
    with pytest.raises(ConfigError):
        load(None, {})


_ODD: tuple[Any, ...] = (5, True, 1.5, [1], [None], {"a": 1}, b"\x00", "x\x00", "é", None)
_FIELDS: tuple[tuple[str | int, ...], ...] = (
    ("current-context",),
    *((section,) for section in ("contexts", "clusters", "users")),
    *(("contexts", 0, *path) for path in ((), ("name",), ("context",), ("context", "cluster"), ("context", "user"))),
    *(("clusters", 0, "cluster", *path) for path in ((), ("server",), ("certificate-authority",))),
    ("clusters", 0, "cluster", "certificate-authority-data"),
    *(("users", 0, "user", *path) for path in ((), ("tokenFile",), ("client-key",), ("client-certificate-data",))),
)


@pytest.mark.parametrize("field", _FIELDS, ids=lambda field: ".".join(map(str, field)))
def test_an_odd_value_is_read_or_refused_with_its_file(tmp_path: Path, field: tuple[str | int, ...]) -> None:
    file = tmp_path / "config"
    for odd in _ODD:
        document: Any = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        place = document
        for key in field[:-1]:
            place = place[key]
        place[field[-1]] = odd
        file.write_text(yaml.dump(document))
        try:
            assert load_kubeconfig(file).server == "https://127.0.0.1:1"
        except ConfigError as failure:
            assert str(failure).startswith(str(file))


@pytest.mark.parametrize("server", ["", "h:1", "ftp://h", "http://[", "https://h:99999", "https://[::1", "https://"])
def test_an_address_that_is_no_url_is_refused(tmp_path: Path, server: str) -> None:
    (tmp_path / "config").write_text(
        f"current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n"
        f"clusters: [{{name: k, cluster: {{server: '{server}'}}}}]\n"
    )
    with pytest.raises(ConfigError, match="expected an http"):
        load_kubeconfig(tmp_path / "config")


def test_missing_files_of_the_variable_are_skipped(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    assert load(None, {"KUBECONFIG": f":/nope:{path}"}).server == "https://h:1"
    with pytest.raises(ConfigError, match=r"^/nope: cannot be read: No such file or directory$"):
        load(None, {"KUBECONFIG": "/nope:/neither"})

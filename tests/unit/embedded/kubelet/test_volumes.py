"""Volumes: their content, and the files on disk."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.kubelet.environment import PodFields
from podwire.embedded.kubelet.volumes import (
    Content,
    File,
    TokenRequest,
    VolumeRoots,
    VolumeTokens,
    compile_files,
    config_map_data,
    prepare,
    secret_data,
    sub_path,
    token_requests,
    write_files,
)
from podwire.errors import ConfigError
from podwire.model.pod import Pod

POD = msgspec.convert({"metadata": {"name": "p", "namespace": "shop", "labels": {"a": "b"}}}, Pod)


class FakeConfig:
    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return {"a": b"1", "b": b"2"} if (namespace, name) == ("shop", "cm") else None

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return {"k": b"s"} if name == "sec" else None


TOKEN_VOLUME = {"name": "kube-api-access-abcde", "projected": {"sources": [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]}}  # fmt: skip
CONTENT = Content(
    PodFields(POD, "node-1"),
    FakeConfig(),
    VolumeTokens({TokenRequest(life_s=3607): "tok", TokenRequest("vault", 600): "tok2"}, b"PEM"),
)


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"configMap": {"name": "cm"}}, {"a": File(b"1"), "b": File(b"2")}),
        ({"configMap": {"name": "cm", "defaultMode": 0o400, "items": [{"key": "a", "path": "x/y"}]}},
         {"x/y": File(b"1", 0o400)}),
        ({"configMap": {"name": "no", "optional": True}}, {}),
        ({"configMap": {"name": "kube-root-ca.crt"}}, {"ca.crt": File(b"PEM")}),
        ({"secret": {"secretName": "sec"}}, {"k": File(b"s")}),
        ({"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
         {"labels": File(b'a="b"')}),
        ({"projected": {"sources": [{"secret": {"name": "sec"}}, {"configMap": {"name": "cm", "items": [
            {"key": "b", "path": "k2"}]}}, {"serviceAccountToken": {
            "path": "t", "audience": "vault", "expirationSeconds": 600}}]}},
         {"k": File(b"s"), "k2": File(b"2"), "t": File(b"tok2")}),
        (TOKEN_VOLUME, {"token": File(b"tok"), "ca.crt": File(b"PEM"), "namespace": File(b"shop")}),
    ],
    ids=str,
)  # fmt: skip
def test_content(volume: dict[str, Any], expected: dict[str, File]) -> None:
    assert compile_files(volume, CONTENT) == expected


@pytest.mark.parametrize(
    ("volume", "problem"),
    [
        ({"configMap": {"name": "no"}}, 'configmap "no" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, "non-existent key: z"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../z"}]}}, "not a relative path"),
    ],
    ids=str,
)
def test_errors_name_the_object_or_path(volume: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        compile_files(volume, CONTENT)


def test_tokens_that_a_volume_projects() -> None:
    assert token_requests(TOKEN_VOLUME) == (TokenRequest("", 3607),)
    assert token_requests({"emptyDir": {}}) == ()


def test_data_of_objects() -> None:
    encoded = base64.b64encode(b"\0").decode()
    assert config_map_data({"data": {"a": "1"}, "binaryData": {"b": encoded}}) == {"a": b"1", "b": b"\0"}
    assert secret_data({"data": {"b": encoded}}) == {"b": b"\0"}
    assert secret_data({}) == {}


def test_update_replaces_all_files_at_once(tmp_path: Path) -> None:
    place = tmp_path / "v"
    assert write_files(place, {"a": File(b"1"), "d/e": File(b"2", 0o600)}, "s1")
    assert ((place / "a").read_bytes(), (place / "d/e").read_bytes()) == (b"1", b"2")
    assert (place / "d/e").stat().st_mode & 0o777 == 0o600
    assert not write_files(place, {"a": File(b"1"), "d/e": File(b"2", 0o600)}, "s2")
    assert write_files(place, {"a": File(b"3"), "f": File(b"4")}, "s3")
    assert sorted(p.name for p in place.iterdir()) == ["..data", "..s3", "a", "f"]
    assert (place / "a").read_bytes() == b"3"


def test_directories_of_volumes(tmp_path: Path) -> None:
    volume_roots = VolumeRoots(tmp_path / "v", tmp_path / "m")
    assert prepare({"name": "e", "emptyDir": {}}, volume_roots) == tmp_path / "v/e"
    assert prepare({"name": "e", "emptyDir": {"medium": "Memory"}}, volume_roots) == tmp_path / "m/e"
    assert prepare({"name": "h", "hostPath": {"path": str(tmp_path)}}, volume_roots) == tmp_path
    of_node = VolumeRoots(tmp_path / "v", tmp_path / "m", {"/etc/cni/net.d": str(tmp_path / "node/net.d")})
    for path, below in (("/etc/cni/net.d", ""), ("/etc/cni/net.d/more", "more")):
        source = {"name": "h", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        assert prepare(source, of_node) == tmp_path / "node/net.d" / below
    assert of_node.host_path("/etc/cni/net.dx") == "/etc/cni/net.dx"
    wrong = {"name": "h", "hostPath": {"path": str(tmp_path), "type": "File"}}
    with pytest.raises(ConfigError, match="is not a File"):
        prepare(wrong, volume_roots)


def test_a_sub_path_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    assert sub_path(tmp_path / "v", "a/b") == tmp_path / "v/a/b"
    with pytest.raises(ConfigError, match="leads out"):
        sub_path(tmp_path / "v", "../x")

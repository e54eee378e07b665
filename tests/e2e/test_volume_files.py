"""Volumes of files: content, modes and owners, as containers of a few pods see them."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, eventually

_DATA = {"data-1": "value-1", "data-2": "value-2"}
_MOVED = [{"key": "data-1", "path": "path/to/data-1"}]
_PRIVATE = [{"key": "data-1", "path": "path/to/data-1", "mode": 0o400}]
_ROOT: dict[str, Any] = {}
_USER = {"runAsUser": 1000}
_SIZES = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1250m", "memory": "64Mi"}}


def _item(path: str, **source: Any) -> dict[str, Any]:
    return {"path": path, **source}


def _size(path: str, resource: str, container: str) -> dict[str, Any]:
    return _item(path, resourceFieldRef={"containerName": container, "resource": resource})


def _downward(container: str) -> dict[str, Any]:
    sizes = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
    return {
        "items": [
            _item("name", fieldRef={"fieldPath": "metadata.name"}, mode=0o400),
            *(_size(resource, resource, container) for resource in sizes),
        ]
    }


def _rows(name: str, make: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any], str, str]]:
    """The rows of ConfigMaps or Secrets: volume source, security context, file, expected mode and content."""
    return {
        name: (make(), _ROOT, "data-1", "644 value-1"),
        f"{name} as non-root": (make(items=_MOVED), _USER, "path/to/data-1", "644 value-1"),
        f"{name} defaultMode": (make(defaultMode=0o400), _ROOT, "data-1", "400 value-1"),
        f"{name} mappings": (make(items=_MOVED), _ROOT, "path/to/data-1", "644 value-1"),
        f"{name} item mode": (make(items=_PRIVATE), _ROOT, "path/to/data-1", "400 value-1"),
        f"{name} twice": (make(), _ROOT, "data-2", "644 value-2"),
    }


def _projected(kind: str) -> Any:
    """A function that makes a projected volume with one source."""

    def make(defaultMode: int | None = None, **source: Any) -> dict[str, Any]:  # noqa: N803 (the API's name)
        body: dict[str, Any] = {"sources": [{kind: {"name": "settings", **source}}]}
        return {"projected": body if defaultMode is None else {**body, "defaultMode": defaultMode}}

    return make


VOLUMES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    **_rows("configMap", lambda **more: {"configMap": {"name": "settings", **more}}),
    **_rows("secret", lambda **more: {"secret": {"secretName": "settings", **more}}),
    **_rows("projected configMap", _projected("configMap")),
    **_rows("projected secret", _projected("secret")),
    "configMap binary": ({"configMap": {"name": "settings"}}, _ROOT, "binary", "644 \u00ff"),
    "projected all": (
        {"projected": {"sources": [
            {"configMap": {"name": "settings", "items": [{"key": "data-1", "path": "c"}]}},
            {"secret": {"name": "settings", "items": [{"key": "data-2", "path": "s"}]}},
            {"downwardAPI": {"items": [_item("n", fieldRef={"fieldPath": "metadata.name"})]}},
        ]}},
        _ROOT, "c s n", "644 value-1 644 value-2 644 table",
    ),
}  # fmt: skip
_SIZED = "name limits.cpu limits.memory requests.cpu requests.memory"
_SIZED_TEXT = "400 table 600 2 600 67108864 600 1 600 33554432"
VOLUMES |= {
    "downwardAPI": ({"downwardAPI": {**_downward("root"), "defaultMode": 0o600}}, _ROOT, _SIZED, _SIZED_TEXT),
    "projected downwardAPI": (
        {"projected": {"defaultMode": 0o600, "sources": [{"downwardAPI": _downward("root")}]}},
        _ROOT, _SIZED, _SIZED_TEXT,
    ),
}  # fmt: skip
GROUPED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    f"{name} fsGroup": (source, _USER, "data-1", "440 value-1")
    for name, source in (
        ("secret", {"secret": {"secretName": "settings", "defaultMode": 0o440}}),
        ("projected secret", {"projected": {"defaultMode": 0o440, "sources": [{"secret": {"name": "settings"}}]}}),
    )
}


def _name(row: str) -> str:
    return row.replace(" ", "-").lower()


def _container(name: str, rows: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """A container with the volumes of rows, which writes a line for each row: mode and content of its files."""
    lines = [
        f'cd "/v/{_name(row)}"; echo {_name(row)} $(for f in {files}; do stat -Lc %a $f; cat $f; echo; done)'
        for row, (_, _, files, _) in rows.items()
    ]
    mounts = [{"name": _name(row), "mountPath": f"/v/{_name(row)}"} for row in rows]
    return {
        "name": name, "image": "busybox:1.36", "command": ["sh", "-c", "\n".join(lines)], "securityContext": context,
        "resources": _SIZES, "volumeMounts": mounts,
    }  # fmt: skip


def pod_of(name: str, rows: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod with a volume for each row, and a container for the rows of each user."""
    containers = []
    for user, context in (("root", _ROOT), ("user", _USER)):
        if own := {row: result for row, result in rows.items() if result[1] == context}:
            containers.append(_container(user, own, context))
    volumes = [{"name": _name(row), **source} for row, (source, *_) in rows.items()]
    body = {"restartPolicy": "Never", "containers": containers, "volumes": volumes, **spec}
    return {"metadata": {"name": name}, "spec": body}


@pytest.fixture(scope="module")
def output(api: Connection, cluster: Cluster) -> Iterator[dict[str, str]]:
    """What the containers of two pods wrote, by row."""
    namespace = f"volumes-{os.getpid()}"
    home = f"/api/v1/namespaces/{namespace}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        settings = {"metadata": {"name": "settings"}}
        api.do("POST", f"{home}/configmaps", {**settings, "data": _DATA, "binaryData": {"binary": "w78="}})
        api.do("POST", f"{home}/secrets", {**settings, "stringData": _DATA})
        api.do("POST", f"{home}/pods", pod_of("table", VOLUMES))
        api.do("POST", f"{home}/pods", pod_of("grouped", GROUPED, securityContext={"fsGroup": 1001}))
        done = ("Succeeded", "Failed")
        lines: list[str] = []
        for pod in ("table", "grouped"):
            eventually(lambda pod=pod: api.do("GET", f"{home}/pods/{pod}")["status"]["phase"] in done)
            arguments = ["kubectl", "logs", pod, "-n", namespace, "--all-containers"]
            lines += cluster.run(arguments).stdout.splitlines()
        yield dict(line.split(" ", 1) for line in lines if " " in line)
    finally:
        api.do("DELETE", home)


@pytest.mark.parametrize("row", [*VOLUMES, *GROUPED])
def test_files_of_a_volume(output: dict[str, str], row: str) -> None:
    assert output[_name(row)] == {**VOLUMES, **GROUPED}[row][3]


def shell(name: str, script: str, *mounts: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A container that runs a script with volumes mounted, each by name and path."""
    positions = [{"name": volume, "mountPath": path} for volume, path in mounts]
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], "volumeMounts": positions, **more}


def ended(api: Connection, namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    """The status of a new pod that has ended well."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.do("POST", path, {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", **spec}})
    done = ("Succeeded", "Failed")
    result: dict[str, Any] = eventually(
        lambda: (now := api.do("GET", f"{path}/{name}")["status"])["phase"] in done and now
    )
    assert result["phase"] == "Succeeded", result
    return result


_MODES = 'id -u; stat -c "%a %F" /d; for m in 644 666 777; do touch /d/$m; chmod $m /d/$m; stat -c "%a %u" /d/$m; done'


@pytest.mark.parametrize("medium", ["default", "tmpfs"])
@pytest.mark.parametrize("user", ["root", "non-root"])
def test_files_keep_their_mode_and_owner(
    api: Connection, cluster: Cluster, namespace: str, user: str, medium: str
) -> None:
    uid = 0 if user == "root" else 1001
    kind = {"medium": "Memory"} if medium == "tmpfs" else {}
    container = shell("c", _MODES + "; stat -fc %T /d", ("d", "/d"), securityContext={"runAsUser": uid})
    ended(api, namespace, "modes", containers=[container], volumes=[{"name": "d", "emptyDir": kind}])
    lines = cluster.kubectl("logs", "modes", "-n", namespace).splitlines()
    assert lines[:5] == [str(uid), "777 directory", f"644 {uid}", f"666 {uid}", f"777 {uid}"]
    run = os.statvfs("/run/podwire").f_fsid, os.statvfs("/var/lib").f_fsid
    assert medium == "default" or run[0] == run[1] or lines[5] == "tmpfs", "memory is a tmpfs where /run is one"


def test_containers_share_a_volume(api: Connection, cluster: Cluster, namespace: str) -> None:
    writer = shell("writer", "echo shared > /d/file", ("d", "/d"))
    reader = shell("reader", "until test -s /e/file; do sleep 0.1; done; cat /e/file", ("d", "/e"))
    ended(api, namespace, "shared", containers=[writer, reader], volumes=[{"name": "d", "emptyDir": {}}])
    assert cluster.kubectl("logs", "shared", "-c", "reader", "-n", namespace) == "shared\n"


def test_fifty_volumes_of_one_pod_are_mounted(api: Connection, cluster: Cluster, namespace: str) -> None:
    names = [f"map-{number}" for number in range(50)]
    for name in names:
        api.do("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}, "data": {"k": name}})
    volumes = [{"name": name, "configMap": {"name": name}} for name in names]
    container = shell("c", "cat /v/*/k | wc -c", *((name, f"/v/{name}") for name in names))
    ended(api, namespace, "many", containers=[container], volumes=volumes)
    assert cluster.kubectl("logs", "many", "-n", namespace).strip() == str(sum(map(len, names)))


@pytest.mark.parametrize("plural", ["configmaps", "secrets"])
def test_immutable_objects_stay_as_they_are(api: Connection, namespace: str, plural: str) -> None:
    home = f"/api/v1/namespaces/{namespace}/{plural}"
    field = "data" if plural == "configmaps" else "stringData"
    api.do("POST", home, {"metadata": {"name": "one"}, field: {"a": "b"}})
    api.do("PATCH", f"{home}/one", {field: {"a": "c"}})
    api.do("PATCH", f"{home}/one", {"immutable": True})
    for patch in ({field: {"a": "d"}}, {"immutable": False}, {"immutable": None}):
        refused = api.ask("PATCH", f"{home}/one", patch)
        assert refused.status == 422 and "immutable" in refused.body["message"]
    api.do("PATCH", f"{home}/one", {"metadata": {"labels": {"still": "free"}}})
    api.do("DELETE", f"{home}/one")


def test_changed_objects_reach_the_volume(api: Connection, cluster: Cluster, namespace: str) -> None:
    """Values change, optional objects come and go, labels and annotations change: all kinds of volumes follow."""
    home = f"/api/v1/namespaces/{namespace}"
    for plural, field in (("configmaps", "data"), ("secrets", "stringData")):
        for name in ("kept", "gone"):
            api.do("POST", f"{home}/{plural}", {"metadata": {"name": name}, field: {"k": "old"}})
    sources: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    for name in ("kept", "gone", "comes"):
        items = {"optional": True, "items": [{"key": "k", "path": name}]}
        sources += [
            {"configMap": {"name": name, "optional": True, "items": [{"key": "k", "path": f"c-{name}"}]}},
            {"secret": {"name": name, "optional": True, "items": [{"key": "k", "path": f"s-{name}"}]}},
        ]
        volumes += [{"name": f"c-{name}", "configMap": {"name": name, **items}},
                    {"name": f"s-{name}", "secret": {"secretName": name, **items}}]  # fmt: skip
    facts = [{"path": word, "fieldRef": {"fieldPath": f"metadata.{word}"}} for word in ("labels", "annotations")]
    volumes += [
        {"name": "facts", "downwardAPI": {"items": facts}},
        {"name": "all", "projected": {"sources": [*sources, {"downwardAPI": {"items": facts}}]}},
    ]
    positions = [(volume["name"], f"/v/{volume['name']}") for volume in volumes]
    body = {"containers": [shell("c", "sleep 600", *positions)], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    meta = {"name": "watching", "labels": {"key": "old"}, "annotations": {"key": "old"}}
    api.do("POST", f"{home}/pods", {"metadata": meta, "spec": body})
    eventually(lambda: api.do("GET", f"{home}/pods/watching")["status"]["phase"] == "Running")
    script = 'cd /v; for f in $(find -L . -type f -not -path "*/..*" | sort); do echo "$f $(cat $f)"; done'
    arguments = ("exec", "watching", "-n", namespace, "--", "sh", "-c", script)

    def files_of_volume() -> dict[str, str]:
        lines = cluster.kubectl(*arguments).splitlines()
        return dict(line.removeprefix("./").split(" ", 1) for line in lines if " " in line)

    before = files_of_volume()
    assert before["c-kept/kept"] == before["all/s-gone"] == "old" and "c-comes/comes" not in before
    for plural, field in (("configmaps", "data"), ("secrets", "stringData")):
        api.do("PATCH", f"{home}/{plural}/kept", {field: {"k": "new"}})
        api.do("DELETE", f"{home}/{plural}/gone")
        api.do("POST", f"{home}/{plural}", {"metadata": {"name": "comes"}, field: {"k": "new"}})
    api.do("PATCH", f"{home}/pods/watching", {"metadata": {"labels": {"key": "new"}, "annotations": {"key": "new"}}})
    files = {f"{kind}-{name}/{name}": "new" for kind in "cs" for name in ("kept", "comes")}
    files |= {f"all/{kind}-{name}": "new" for kind in "cs" for name in ("kept", "comes")}

    def followed() -> bool:
        now = files_of_volume()
        there = now.items() >= files.items() and not any("gone" in name for name in now)
        return there and all('key="new"' in now[f"{place}/{word}"] for place in ("facts", "all")
                             for word in ("labels", "annotations"))  # fmt: skip

    eventually(followed)


def test_sub_paths_of_every_volume_of_files(api: Connection, cluster: Cluster, namespace: str) -> None:
    home = f"/api/v1/namespaces/{namespace}"
    api.do("POST", f"{home}/configmaps", {"metadata": {"name": "s"}, "data": {"k": "config"}})
    api.do("POST", f"{home}/secrets", {"metadata": {"name": "s"}, "stringData": {"k": "secret"}})
    name = {"path": "k", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": "s"}}, {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "downward", "downwardAPI": {"items": [name]}},
        {"name": "projected", "projected": {"sources": [{"configMap": {"name": "s"}}]}},
    ]  # fmt: skip
    mounts = [{"name": volume["name"], "mountPath": f"/sub/{volume['name']}", "subPath": "k"} for volume in volumes]
    mounts.append({"name": "config", "mountPath": "/etc/debian_version", "subPath": "k"})
    files = [mount["mountPath"] for mount in mounts]
    container = {**shell("c", f"for f in {' '.join(files)}; do cat $f; echo; done"), "volumeMounts": mounts}
    ended(api, namespace, "sub-paths", containers=[container], volumes=volumes)
    lines = cluster.kubectl("logs", "sub-paths", "-n", namespace).split()
    assert lines == ["config", "secret", "sub-paths", "config", "config"]


def _expanding(expression: str, script: str) -> dict[str, Any]:
    """A container with a volume at ``/whole``, and a part of it, by an expression of an annotation, at ``/part``."""
    value = {"fieldRef": {"fieldPath": "metadata.annotations['folder']"}}
    mounts = [{"name": "d", "mountPath": "/whole"}, {"name": "d", "mountPath": "/part", "subPathExpr": expression}]
    return {**shell("c", script), "env": [{"name": "FOLDER", "valueFrom": value}], "volumeMounts": mounts}


def expanding_pod(api: Connection, namespace: str, folder: str, expression: str, script: str) -> str:
    """A new pod with such a container; its path."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "volumes": [{"name": "d", "emptyDir": {}}],
            "containers": [_expanding(expression, script)]}  # fmt: skip
    api.do("POST", path, {"metadata": {"name": "p", "annotations": {"folder": folder}}, "spec": spec})
    return f"{path}/p"


def test_sub_paths_of_variables(api: Connection, cluster: Cluster, namespace: str) -> None:
    script = "echo written > /part/file; cat /whole/my/folder/file"
    path = expanding_pod(api, namespace, "my/folder", "$(FOLDER)", script)
    eventually(lambda: api.do("GET", path)["status"]["phase"] == "Succeeded")
    assert cluster.kubectl("logs", "p", "-n", namespace) == "written\n"


def waiting(api: Connection, path: str) -> str:
    """Why the container of a pod waits; empty when it does not."""
    statuses = api.do("GET", path)["status"].get("containerStatuses") or [{}]
    return str((statuses[0].get("state", {}).get("waiting") or {}).get("reason", ""))


@pytest.mark.parametrize("folder", ["/absolute", "../up"])
def test_wrong_sub_paths_keep_a_container_waiting(api: Connection, namespace: str, folder: str) -> None:
    path = expanding_pod(api, namespace, folder, "$(FOLDER)", "true")
    eventually(lambda: waiting(api, path) == "CreateContainerConfigError")
    assert api.do("GET", path)["status"]["phase"] == "Pending"


def test_a_wrong_sub_path_is_mended_by_an_annotation(api: Connection, namespace: str) -> None:
    path = expanding_pod(api, namespace, "/absolute", "$(FOLDER)", "true")
    eventually(lambda: waiting(api, path) == "CreateContainerConfigError")
    api.do("PATCH", path, {"metadata": {"annotations": {"folder": "good"}}})
    eventually(lambda: api.do("GET", path)["status"]["phase"] == "Succeeded")


def test_an_inline_volume_of_a_driver_is_stored(api: Connection, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    volume = {"name": "v", "csi": {"driver": "example.com", "volumeAttributes": {"a": "b"}, "readOnly": False}}
    spec = {"containers": [shell("c", "true", ("v", "/v"))], "volumes": [volume], "nodeSelector": {"there": "is-none"}}
    api.do("POST", path, {"metadata": {"name": "p"}, "spec": spec})
    assert api.do("GET", f"{path}/p")["spec"]["volumes"][0] == volume

"""A cluster of an upgrade in memory: an API with the real rules of server-side apply, and controllers that act at once.

Objects are kept as the API has them. After each write the controllers of DaemonSets and Deployments do all that they
would do: with OnDelete a DaemonSet's pod is made anew only when it is missing; with RollingUpdate all outdated pods are
replaced at once, which :attr:`UpgradeCluster.surprises` counts. Images in :attr:`UpgradeCluster.broken` never get
ready. A write can end the run, as kill -9 does: :attr:`UpgradeCluster.allowed` writes succeed.

Pods of podwire's own commands end at once; their answers come from :attr:`UpgradeCluster.answers`.
"""

import datetime
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.patch import merge, server_side
from podwire.embedded.apiserver.patch.server_side import Author
from podwire.embedded.apiserver.schema import data
from podwire.errors import AlreadyExists, Conflict, NotFound
from podwire.kube.client import APPLY_PATCH, MERGE_PATCH
from podwire.kube.decode import Page
from podwire.kube.request import ApiAnswer
from podwire.kube.resources import DAEMONSETS, DEPLOYMENTS, PODS, Resource
from podwire.upgrade.verify import checks

Json = dict[str, Any]
Key = tuple[str, str, str]
Arguments = list[str]
Objects = list[Json]
NOW = "2026-01-01T00:00:00Z"
_HASH = "controller-revision-hash"
_NO_CALLS = 10_000


class Killed(Exception):
    """The run ended here."""


class WaitingClock:
    """A clock on which a sleep takes no time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def now(self) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=self._now_s)

    async def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class UpgradeCluster:
    """The cluster, with the methods of a client."""

    def __init__(self, *nodes: str) -> None:
        self.clock = WaitingClock()
        self.version = "v1.36.0"
        self.objects: dict[Key, Json] = {}
        self.broken: set[str] = set()
        """Images whose pods never get ready."""
        self.answers: dict[str, Callable[[str, Arguments], tuple[bool, str]]] = {}
        """By the third word of a command (``hold``, ``try``), what a pod on a node gives."""
        self.steps: list[tuple[str, str]] = []
        """(node, word) of the commands that ran."""
        self.surprises: list[str] = []
        """Pods that a controller replaced by itself, and rollouts that would take pods away first."""
        self.allowed: int | None = None
        self.writes = 0
        self._number = 0
        for node in nodes:
            ready = {"type": "Ready", "status": "True"}
            address = {"type": "InternalIP", "address": "192.0.2.1"}
            self.put("Node", "", node, {"status": {"conditions": [ready], "addresses": [address]}})
        self.put("Namespace", "", "kube-system", {})

    # ---- what tests use

    def put(self, kind: str, namespace: str, name: str, body: Json, manager: str = "kubectl-create") -> Json:
        """Makes an object as another client would; no write of the run."""
        obj: Json = copied(body)
        obj["metadata"] = {"name": name, "namespace": namespace, "uid": f"uid-{kind}-{name}"} | obj.get("metadata", {})
        obj |= {"kind": kind, "apiVersion": _version(kind)}
        schema = _schema(kind)
        if schema is not None and kind not in ("Node", "Pod"):
            server_side.track(None, obj, schema, Author(manager, NOW))
        obj["metadata"].setdefault("generation", 1)
        self.objects[kind, namespace, name] = obj
        self._control()
        return obj

    def content(self) -> dict[Key, Json]:
        """All objects but those that follow from others, without what the API keeps account of."""
        return {
            key: {
                **{k: v for k, v in obj.items() if k not in ("metadata", "status")},
                "labels": obj["metadata"].get("labels"),
            }
            for key, obj in sorted(self.objects.items())
            if key[0] not in ("Pod", "ControllerRevision")
        }

    def images(self, name: str) -> dict[str, str]:
        """By node, the image of the pod of a DaemonSet."""
        return {
            pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"]
            for pod in self._owned(self.objects["DaemonSet", "kube-system", name])
        }

    # ---- the client

    async def get(self, resource: Resource[Any], name: str, namespace: str = "", **_: Any) -> Json:
        return copied(self._held(resource.kind, namespace, name))

    async def list(
        self, resource: Resource[Any], namespace: str = "", *, label_selector: str = "", field_selector: str = "",
        **_: Any,
    ) -> Page[Any]:  # fmt: skip
        chosen = [obj for (kind, space, _), obj in sorted(self.objects.items()) if kind == resource.kind]
        chosen = [obj for obj in chosen if not namespace or obj["metadata"].get("namespace") == namespace]
        if label_selector:
            label, _equals, value = label_selector.partition("=")
            chosen = [obj for obj in chosen if (obj["metadata"].get("labels") or {}).get(label) == value]
        if field_selector:
            node = field_selector.removeprefix("spec.nodeName=")
            chosen = [obj for obj in chosen if obj["spec"].get("nodeName") == node]
        return Page(items=tuple(map(copied, chosen)), resource_version="1", continue_="")

    async def create(self, resource: Resource[Any], body: Any, namespace: str = "", **_: Any) -> Json:
        key = resource.kind, namespace, body["metadata"]["name"]
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{key} exists")
        self._write()
        obj = self.put(resource.kind, namespace, key[2], body, "podwire")
        if resource.kind == "Pod":
            self._run(obj)
        if resource.kind == "Service":
            obj["spec"]["clusterIP"] = "10.96.0.9"
        return copied(obj)

    async def patch(
        self, resource: Resource[Any], name: str, body: Any, namespace: str = "", *, patch_type: str = MERGE_PATCH,
        **_: Any,
    ) -> Json:  # fmt: skip
        if patch_type == APPLY_PATCH:
            return self._apply(resource.kind, namespace, name, body, force=True, dry=False)
        live = self._held(resource.kind, namespace, name)
        self._write()
        return copied(self._replace(live, merge.apply(copied(live), body)))

    async def delete(self, resource: Resource[Any], name: str, namespace: str = "", *, uid: str = "", **_: Any) -> Json:
        live = self._held(resource.kind, namespace, name)
        if uid and live["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "another uid")
        self._write()
        del self.objects[resource.kind, namespace, name]
        self._control()
        return {}

    async def raw(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> ApiAnswer:  # fmt: skip
        if path == "/version":
            return ApiAnswer(200, {}, json.dumps({"gitVersion": self.version}).encode())
        segments = path.split("/")
        if method == "GET" and segments[-1] == "log":
            pod = self._held("Pod", segments[-4], segments[-2])
            return ApiAnswer(200, {}, pod["log"].encode())
        obj = json.loads(body)
        try:
            applied = self._apply(
                obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"], obj,
                force="force" in (query or {}), dry="dryRun" in (query or {}),
            )  # fmt: skip
        except Conflict as failure:
            failed = {"kind": "Status", "status": "Failure", "reason": "Conflict", "message": failure.message,
                      "code": 409, "details": failure.details}  # fmt: skip
            return ApiAnswer(409, {}, msgspec.json.encode(failed))
        return ApiAnswer(200, {}, msgspec.json.encode(applied))

    async def close(self) -> None:
        pass

    # ---- inside

    def _held(self, kind: str, namespace: str, name: str) -> Json:
        if (kind, namespace, name) not in self.objects:
            raise NotFound(404, "NotFound", f"{kind} {name} not found")
        return self.objects[kind, namespace, name]

    def _write(self) -> None:
        self.writes += 1
        assert self.writes < _NO_CALLS, "the run does not end"
        if self.allowed is not None:
            if self.allowed == 0:
                raise Killed
            self.allowed -= 1

    def _apply(self, kind: str, namespace: str, name: str, body: Json, *, force: bool, dry: bool) -> Json:
        live = self.objects.get((kind, namespace, name))
        schema = _schema(kind)
        assert schema is not None
        author = Author("podwire-upgrade", NOW, force=force)
        new = server_side.apply(live, copied(body), schema, author)
        if dry:
            return new
        self._write()
        if live is None:
            new["metadata"] |= {"uid": f"uid-{kind}-{name}", "generation": 1}
            self.objects[kind, namespace, name] = new
            self._control()
            return copied(self.objects[kind, namespace, name])
        return copied(self._replace(live, new))

    def _replace(self, live: Json, new: Json) -> Json:
        if live.get("spec") != new.get("spec"):
            new["metadata"]["generation"] = live["metadata"].get("generation", 1) + 1
        meta = new["metadata"]
        self.objects[new["kind"], meta.get("namespace", ""), meta["name"]] = new
        self._control()
        return new

    # ---- controllers

    def _control(self) -> None:
        for (kind, _, _), obj in list(self.objects.items()):
            if kind == DAEMONSETS.kind:
                self._daemonset(obj)
            elif kind == DEPLOYMENTS.kind:
                self._deployment(obj)

    def _daemonset(self, obj: Json) -> None:
        revision = self._revision(obj)
        nodes = [name for kind, _, name in self.objects if kind == "Node"]
        by_node = {pod["spec"]["nodeName"]: pod for pod in self._owned(obj)}
        for node in nodes:
            pod = by_node.get(node)
            if pod is not None and pod["metadata"]["labels"][_HASH] != revision:
                if obj["spec"].get("updateStrategy", {}).get("type") == "OnDelete":
                    continue
                self.surprises.append(f"{obj['metadata']['name']} on {node}")
                del self.objects["Pod", obj["metadata"]["namespace"], pod["metadata"]["name"]]
                pod = None
            if pod is None:
                self._make_pod(obj, node, revision)
        pods = self._owned(obj)
        obj["status"] = {
            "observedGeneration": obj["metadata"]["generation"],
            "desiredNumberScheduled": len(nodes),
            "updatedNumberScheduled": sum(pod["metadata"]["labels"][_HASH] == revision for pod in pods),
            "numberAvailable": sum(_ready(pod) for pod in pods),
        }

    def _revision(self, obj: Json) -> str:
        """The label of the template's revision, which is the newest one."""
        template = json.dumps(obj["spec"]["template"], sort_keys=True)
        digest = hashlib.sha256(template.encode()).hexdigest()[:8]
        meta = obj["metadata"]
        revisions = [item for (kind, _, _), item in self.objects.items() if kind == "ControllerRevision"]
        newest = max((item["revision"] for item in revisions), default=0)
        key = "ControllerRevision", meta["namespace"], f"{meta['name']}-{digest}"
        if key not in self.objects or self.objects[key]["revision"] != newest:
            self.objects[key] = {
                "metadata": {"name": key[2], "namespace": key[1], "labels": {_HASH: digest}, **_owner(obj)},
                "kind": key[0],
                "revision": newest + 1,
            }
        return digest

    def _make_pod(self, obj: Json, node: str, revision: str) -> None:
        self._number += 1
        meta = obj["metadata"]
        labels = {_HASH: revision, **obj["spec"]["template"].get("metadata", {}).get("labels", {})}
        pod: Json = {
            "kind": "Pod",
            "metadata": {"name": f"{meta['name']}-{self._number}", "namespace": meta["namespace"], "labels": labels,
                         "uid": f"pod-{self._number}", **_owner(obj)},
            "spec": copied(obj["spec"]["template"]["spec"]) | {"nodeName": node},
        }  # fmt: skip
        pod["status"] = self._status(pod)
        self.objects["Pod", meta["namespace"], pod["metadata"]["name"]] = pod

    def _status(self, pod: Json) -> Json:
        good = not any(container["image"] in self.broken for container in pod["spec"]["containers"])
        conditions = [{"type": "Ready", "status": str(good)}]
        return {"phase": "Running", "podIP": "10.244.0.2", "conditions": conditions}

    def _deployment(self, obj: Json) -> None:
        template = json.dumps(obj["spec"]["template"], sort_keys=True)
        replicas = obj["spec"].get("replicas", 1)
        status = obj.setdefault("status", {"template": template})
        if status["template"] != template:
            rolling = obj["spec"].get("strategy", {}).get("rollingUpdate", {})
            if rolling.get("maxUnavailable") != 0:
                self.surprises.append(f"{obj['metadata']['name']} takes pods away first")
        good = self._status({"spec": obj["spec"]["template"]["spec"]})["conditions"][0]["status"] == "True"
        obj["status"] = {
            "template": template,
            "observedGeneration": obj["metadata"]["generation"],
            "replicas": replicas if good else replicas + 1,
            "updatedReplicas": replicas if good else 1,
            "availableReplicas": replicas,
        }

    def _owned(self, obj: Json) -> Objects:
        uid = obj["metadata"]["uid"]
        pods = [item for (kind, _, _), item in sorted(self.objects.items()) if kind == PODS.kind]
        return [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", ()))]

    def _run(self, pod: Json) -> None:
        """The pod of a command: it serves, or ends at once."""
        pod["status"] = self._status(pod)
        pod["spec"].setdefault("nodeName", "a")
        arguments = pod["spec"]["containers"][0].get("args") or []
        if arguments[:2] != ["upgrade", "node"] or arguments[2] == "serve":
            return
        node, step = pod["spec"]["nodeName"], arguments[2]
        self.steps.append((node, step))
        good, log = self.answers.get(step, answer)(node, arguments)
        pod["status"]["phase"] = "Succeeded" if good else "Failed"
        pod["log"] = log


def copied(value: Json) -> Json:
    """A copy of a JSON value, twenty times as fast as that of the module copy."""
    return msgspec.json.decode(msgspec.json.encode(value), type=Json)


def answer(node: str, arguments: list[str]) -> tuple[bool, str]:
    """What a step gives when all is well."""
    if arguments[2] != "try":
        return True, ""
    tried = checks.decode(arguments[3])
    results = [checks.CheckResult(kind=check.kind, target=check.target) for check in tried]
    return True, checks.results_line(results)


def _ready(pod: Json) -> bool:
    return bool(pod["status"]["conditions"][0]["status"] == "True")


def _owner(obj: Json) -> Json:
    meta = obj["metadata"]
    return {"ownerReferences": [{"kind": obj["kind"], "name": meta["name"], "uid": meta["uid"], "controller": True}]}


def _version(kind: str) -> str:
    rights = "rbac.authorization.k8s.io/v1"
    versions = {"DaemonSet": "apps/v1", "Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}
    return versions.get(kind, rights if kind in ("ClusterRole", "ClusterRoleBinding") else "v1")


def _schema(kind: str) -> Any:
    group, _, version = _version(kind).rpartition("/")
    return data.for_kind(group, version, kind)

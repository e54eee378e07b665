"""The subresources that are answered here: scale, binding, eviction, token, finalize, ephemeral containers.

(``status`` is an update like any other; ``log``, ``exec``, ``attach``, ``portforward`` and ``proxy`` go to
the kubelet.) Sources: ``k8s.io/kubernetes/pkg/registry/core/pod/storage``, ``.../apps/*/storage``.
"""

import uuid
from typing import Any

import msgspec

from podwire.embedded.apiserver import bodies, failures, scale
from podwire.embedded.apiserver.admission.chain import AdmissionRequest
from podwire.embedded.apiserver.auth import ServiceAccountTokens
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.customresources import CustomResources
from podwire.embedded.apiserver.kinds import KINDS, ResourceKind
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.embedded.apiserver.waits import Waits
from podwire.embedded.apiserver.writes import Writer, outdated
from podwire.errors import ApiError
from podwire.model.selector import LabelSelector
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]
Answer = tuple[int, bytes, int]
"""HTTP status, body, and the version that must be on the disk before it is sent."""

_encode = msgspec.json.Encoder().encode
_PODS = KINDS["", "v1", "pods"]
_BUDGETS = KINDS["policy", "v1", "poddisruptionbudgets"]
_TOKEN_S = 3600
_TOPOLOGY = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_TOKEN_LIMIT_S = (600, 1 << 32)


class Subresources:
    """Answers subresources of stored objects."""

    def __init__(
        self, store: Store, writer: Writer, tokens: ServiceAccountTokens, custom: CustomResources, clock: Clock
    ) -> None:
        self._custom = custom
        self._store = store
        self._writer = writer
        self._tokens = tokens
        self._clock = clock

    def answer(self, call: Call) -> Waits[Answer]:
        """The answer to a call whose subresource exists.

        Raises: ApiError of the subresource; MethodNotAllowed for a subresource that is not handled here.
        """
        entry = self._store.get(call.kind.table, call.namespace, call.name)
        if entry is None:
            raise failures.not_found(call.kind, call.name)
        if call.subresource == "scale":
            return (yield from self._scale(call, entry))
        if call.subresource == "binding":
            version = yield from self.bind(call, call.name, self._body(call))
            return 201, _encode(_status_success(201)), version
        if call.subresource == "eviction":
            return (yield from self._evict(call, entry))
        if call.subresource == "token":
            return (yield from self._token(call, entry))
        if call.verb == "get":
            return 200, entry.raw, entry.version
        return (yield from self._replace(call, entry))

    def _body(self, call: Call) -> Object:
        media_type = bodies.media_type(call.request.headers.get("content-type", ""))
        return self._writer.parse(call, media_type, call.request.body)

    def _replace(self, call: Call, entry: StoredObject) -> Waits[Answer]:
        media_type = bodies.media_type(call.request.headers.get("content-type", ""))
        if call.request.method == "PATCH":
            written = yield from self._writer.patch(call, media_type, call.request.body)
        else:
            obj = self._body(call)
            obj.setdefault("metadata", {}).setdefault("name", entry.name)
            if call.subresource == "finalize":
                finalizers = (obj.get("spec") or {}).get("finalizers") or []
                obj = entry.object()
                obj["spec"] = {**(obj.get("spec") or {}), "finalizers": finalizers}
            written = yield from self._writer.update(call, obj)
        if written.entry is None:
            return 200, _encode(written.obj), 0
        return 200, written.entry.raw, written.entry.version

    # -- scale

    def _scale(self, call: Call, entry: StoredObject) -> Waits[Answer]:
        obj = (yield from self._writer.conversions.view(call.kind, entry)) if call.kind.custom else entry.object()
        paths = self._custom.scale_paths(call.kind)
        if call.verb == "get":
            return 200, _encode(scale.read(obj, paths)), entry.version
        if call.request.method == "PATCH":
            media_type = bodies.media_type(call.request.headers.get("content-type", ""))
            new_scale = self._writer.patched_scale(call, media_type, scale.read(obj, paths))
        else:
            new_scale = self._body(call)
        current = scale.read(obj, paths)
        new_scale = yield from self._writer.admit(AdmissionRequest(call, "UPDATE", new_scale, current))
        version = str((new_scale.get("metadata") or {}).get("resourceVersion") or "")
        if version not in ("", str(entry.version)):
            raise failures.conflict(call.kind, call.name)
        replicas = (new_scale.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            message = f"Invalid value: {replicas}: must be greater than or equal to 0"
            cause = failures.Cause("spec.replicas", "FieldValueInvalid", message)
            raise failures.invalid(call.kind, call.name, [cause])
        written = yield from self._writer.replace(call, scale.write(obj, paths, replicas), entry)
        if written.entry is None:
            return 200, _encode(scale.read(written.obj or obj, paths)), 0
        new_entry = written.entry
        shown = (
            (yield from self._writer.conversions.view(call.kind, new_entry)) if call.kind.custom else new_entry.object()
        )
        return 200, _encode(scale.read(shown, paths)), new_entry.version

    # -- pods

    def bind(self, call: Call, name: str, binding: Object) -> Waits[int]:
        """Sets the node of a pod; returns the version of the change.

        Raises: NotFound without such a pod, Conflict when it has a node or is being deleted.
        """
        entry = self._store.get("/pods", call.namespace, name)
        if entry is None:
            raise failures.not_found(_PODS, name)
        binding = yield from self._writer.admit(AdmissionRequest(call, "CREATE", binding))
        if self._store.get("/pods", call.namespace, name) is not entry:
            raise outdated(_PODS, name)
        obj = entry.object()
        node = str((binding.get("target") or {}).get("name", ""))
        wanted_uid = (binding.get("metadata") or {}).get("uid")
        if not node:
            message = "Required value"
            raise failures.invalid(_PODS, name, [failures.Cause("target.name", "FieldValueRequired", message)])
        if wanted_uid and wanted_uid != entry.uid:
            raise failures.precondition(_PODS, name, "UID", str(wanted_uid), entry.uid)
        if obj["metadata"].get("deletionTimestamp"):
            raise failures.conflict(_PODS, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if (now := obj["spec"].get("nodeName")) is not None and now:
            raise failures.conflict(_PODS, name, f"pod {name} is already assigned to node {now!r}".replace("'", '"'))
        obj["spec"]["nodeName"] = node
        meta = binding.get("metadata") or {}
        added = {
            "annotations": meta.get("annotations"),
            "labels": {**(meta.get("labels") or {}), **self._zone_of(node)},
        }
        for field, values in added.items():
            if values:
                obj["metadata"][field] = {**(obj["metadata"].get(field) or {}), **values}
        _set_condition(obj, {"type": "PodScheduled", "status": "True", "lastProbeTime": None,
                             "lastTransitionTime": rfc3339(self._clock.now())})  # fmt: skip
        obj["status"].pop("nominatedNodeName", None)
        if call.dry_run:
            return entry.version
        return self._store.put("/pods", obj).version

    def _zone_of(self, node: str) -> dict[str, str]:
        """The labels of a node with its zone and region, which its pods get (Kubernetes' PodTopologyLabels)."""
        entry = self._store.get("/nodes", "", node)
        labels = (entry.object()["metadata"].get("labels") or {}) if entry is not None else {}
        return {name: labels[name] for name in _TOPOLOGY if name in labels}

    def _evict(self, call: Call, entry: StoredObject) -> Waits[Answer]:
        obj = entry.object()
        eviction = yield from self._writer.admit(AdmissionRequest(call, "CREATE", self._body(call), obj))
        if self._store.get(entry.table, entry.namespace, entry.name) is not entry:
            raise outdated(call.kind, entry.name)
        options = dict(eviction.get("deleteOptions") or {})
        if call.dry_run:
            options["dryRun"] = ["All"]
        finished = (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")
        if not finished and not obj["metadata"].get("deletionTimestamp"):
            self._check_budget(entry, obj, dry_run=bool(options.get("dryRun")))
        if not options.get("dryRun") and not obj["metadata"].get("deletionTimestamp"):
            entry = self._store.put(entry.table, _disrupted(obj, rfc3339(self._clock.now())))
        last, _ = self._writer.deletion.delete(call.kind, entry, options)
        return 201, _encode(_status_success(201)), max(last.version, self._store.table(_BUDGETS.table).version)

    def _check_budget(self, entry: StoredObject, pod: Object, *, dry_run: bool) -> None:
        budgets = [b for b in self._store.entries(_BUDGETS.table, entry.namespace) if _covers(b.object(), entry)]
        if not budgets:
            return
        if len(budgets) > 1:
            problem = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ApiError(500, "InternalError", problem)
        budget = budgets[0].object()
        status = budget.setdefault("status", {})
        if not _pod_ready(pod) and (
            (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
            or status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0
        ):
            return
        observed = status.get("observedGeneration", 0) >= budget["metadata"].get("generation", 0)
        if not observed or status.get("disruptionsAllowed", 0) <= 0:
            raise _too_many(budgets[0].name, status)
        if dry_run:
            return
        status["disruptionsAllowed"] -= 1
        disrupted = status.setdefault("disruptedPods", {})
        disrupted[entry.name] = rfc3339(self._clock.now())
        self._store.put(_BUDGETS.table, budget)

    # -- service accounts

    def _token(self, call: Call, entry: StoredObject) -> Waits[Answer]:
        request = yield from self._writer.admit(AdmissionRequest(call, "CREATE", self._body(call)))
        spec = request.setdefault("spec", {})
        audiences = spec.get("audiences") or [self._tokens.issuer]
        seconds = int(spec.get("expirationSeconds") or _TOKEN_S)
        low, high = _TOKEN_LIMIT_S
        if not low <= seconds <= high:
            message = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            cause = failures.Cause("spec.expirationSeconds", "FieldValueInvalid", message)
            raise failures.invalid(_token_kind(), "", [cause])
        now = int(self._clock.now().timestamp())
        bound: Object = {
            "namespace": entry.namespace, "serviceaccount": {"name": entry.name, "uid": entry.uid},
        }  # fmt: skip
        if reference := spec.get("boundObjectRef"):
            bound[str(reference.get("kind", "")).lower()] = self._bound(call, reference)
        claims = {
            "aud": audiences, "exp": now + seconds, "iat": now, "iss": self._tokens.issuer,
            "jti": str(uuid.uuid4()), "kubernetes.io": bound, "nbf": now,
            "sub": f"system:serviceaccount:{entry.namespace}:{entry.name}",
        }  # fmt: skip
        spec |= {"audiences": audiences, "expirationSeconds": seconds}
        spec.setdefault("boundObjectRef", None)
        expires = self._clock.now().fromtimestamp(now + seconds, self._clock.now().tzinfo)
        body = {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": entry.name, "namespace": entry.namespace,
                "creationTimestamp": rfc3339(self._clock.now()),
            },
            "spec": spec,
            "status": {"token": self._tokens.sign(claims), "expirationTimestamp": rfc3339(expires)},
        }  # fmt: skip
        return 201, _encode(body), entry.version

    def _bound(self, call: Call, reference: Object) -> Object:
        table = {"Pod": "/pods", "Secret": "/secrets"}.get(str(reference.get("kind", "")))
        if table is None:
            message = f"cannot bind token for serviceaccount to object of kind {reference.get('kind')}"
            raise failures.bad_request(message)
        entry = self._store.get(table, call.namespace, str(reference.get("name", "")))
        if entry is None:
            raise failures.not_found(KINDS["", "v1", table[1:]], str(reference.get("name", "")))
        if reference.get("uid") and reference["uid"] != entry.uid:
            raise failures.conflict(
                KINDS["", "v1", table[1:]], entry.name,
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated",
            )  # fmt: skip
        return {"name": entry.name, "uid": entry.uid}


def _token_kind() -> ResourceKind:
    return ResourceKind(group="authentication.k8s.io", version="v1", kind="TokenRequest", plural="tokenrequests")


def _status_success(code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def _set_condition(obj: Object, condition: Object) -> None:
    status = obj.setdefault("status", {})
    other_conditions = [c for c in status.get("conditions") or () if c.get("type") != condition["type"]]
    status["conditions"] = [*other_conditions, condition]


def _disrupted(pod: Object, now: str) -> Object:
    """The pod with the condition ``DisruptionTarget``: an eviction ends it, not a failure of its own."""
    condition = {
        "type": "DisruptionTarget", "status": "True", "lastProbeTime": None, "lastTransitionTime": now,
        "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    }  # fmt: skip
    status = pod.get("status") or {}
    other_conditions = [c for c in status.get("conditions") or () if c.get("type") != condition["type"]]
    return {**pod, "status": {**status, "conditions": [*other_conditions, condition]}}


def _pod_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _covers(budget: Object, pod: StoredObject) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    return msgspec.convert(selector, LabelSelector).requirements().matches(pod.labels)


def _too_many(budget: str, status: Object) -> ApiError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    needs = (
        f"The disruption budget {budget} needs {status.get('desiredHealthy', 0)} healthy pods and has "
        f"{status.get('currentHealthy', 0)} currently"
    )
    return ApiError(429, "TooManyRequests", message, {"causes": [{"reason": "DisruptionBudget", "message": needs}]})

"""Checks of the workload kinds: ``pkg/apis/{apps,batch,policy}/validation`` of Kubernetes."""

from collections.abc import Iterator, Sequence
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.metadata import check_labels
from podwire.embedded.apiserver.validate.pods import at_least, check_template, one_of

Json = dict[str, Any]

_IMMUTABLE = "field is immutable"
_SET_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_STATEFUL_SET_FREE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def check_selector(value: Any, path: str) -> Iterator[Cause]:
    """A label selector."""
    selector: Json = value or {}
    yield from check_labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, rule in enumerate(selector.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{index}]"
        operator, values = rule.get("operator"), rule.get("values")
        if operator not in _SET_OPERATORS:
            yield causes.invalid(f"{where}.operator", operator or "", "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            yield causes.required(f"{where}.values", detail)
        elif operator in ("Exists", "DoesNotExist") and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield causes.forbidden(f"{where}.values", detail)
        if problem := names.qualified(rule.get("key") or ""):
            yield causes.invalid(f"{where}.key", rule.get("key") or "", problem)


def selects(selector: Json, labels: Json) -> bool:
    """Whether a label selector chooses these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or ():
        key, values = rule.get("key"), rule.get("values") or ()
        passes = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(rule.get("operator"), False)
        if not passes:
            return False
    return True


def _selection(spec: Json, old: Json | None, noun: str = "deployment") -> Iterator[Cause]:
    """The selector is there, chooses the template, and stays."""
    selector = spec.get("selector")
    if selector is None:
        yield causes.required("spec.selector")
        return
    yield from check_selector(selector, "spec.selector")
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        detail = f"empty selector is invalid for {noun}"
        yield causes.invalid("spec.selector", selector, detail)
        return
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selects(selector, labels):
        detail = "`selector` does not match template `labels`"
        yield causes.invalid("spec.template.metadata.labels", labels, detail)
    if old is not None and old.get("selector") != selector:
        yield causes.invalid("spec.selector", selector, _IMMUTABLE)


def _restarts(spec: Json, allowed: Sequence[str], path: str = "spec.template") -> Iterator[Cause]:
    """The template's restart policy."""
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy")
    yield from one_of(policy, allowed, f"{path}.spec.restartPolicy")


def _percentage(value: Any, path: str) -> Iterator[Cause]:
    """A number or a percentage."""
    if isinstance(value, str):
        digits = value.removesuffix("%")
        if digits == value or not digits.isdigit():
            detail = (
                "a valid percent string must be a numeric string followed by an ending '%' "
                "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            )
            yield causes.invalid(path, value, detail)
    else:
        yield from at_least(value, 0, path)


def _is_zero(value: Any) -> bool:
    return value in (0, "0%")


def check_deployment(new: Json, old: Json | None) -> Iterator[Cause]:
    """A Deployment."""
    spec: Json = new.get("spec") or {}
    yield from _selection(spec, (old or {}).get("spec") if old else None)
    yield from check_template(spec.get("template"), "spec.template")
    yield from _restarts(spec, ("Always",))
    for field in ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"):
        yield from at_least(spec.get(field), 0, f"spec.{field}")
    strategy = spec.get("strategy") or {}
    rolling = strategy.get("rollingUpdate")
    yield from one_of(strategy.get("type"), ("Recreate", "RollingUpdate"), "spec.strategy.type")
    if strategy.get("type") == "Recreate" and rolling is not None:
        detail = "may not be specified when strategy `type` is 'Recreate'"
        yield causes.forbidden("spec.strategy.rollingUpdate", detail)
    elif rolling:
        yield from _rolling(rolling, "spec.strategy.rollingUpdate")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if isinstance(deadline, int) and deadline <= ready:
        detail = "must be greater than minReadySeconds"
        yield causes.invalid("spec.progressDeadlineSeconds", deadline, detail)


def _rolling(rolling_update: Json, path: str) -> Iterator[Cause]:
    for field in ("maxUnavailable", "maxSurge"):
        yield from _percentage(rolling_update.get(field), f"{path}.{field}")
    if _is_zero(rolling_update.get("maxUnavailable")) and _is_zero(rolling_update.get("maxSurge")):
        detail = "may not be 0 when `maxSurge` is 0"
        yield causes.invalid(f"{path}.maxUnavailable", rolling_update["maxUnavailable"], detail)


def check_replica_set(new: Json, old: Json | None) -> Iterator[Cause]:
    """A ReplicaSet."""
    spec: Json = new.get("spec") or {}
    yield from _selection(spec, (old or {}).get("spec") if old else None)
    yield from check_template(spec.get("template"), "spec.template")
    yield from _restarts(spec, ("Always",))
    yield from at_least(spec.get("replicas"), 0, "spec.replicas")


def check_daemon_set(new: Json, old: Json | None) -> Iterator[Cause]:
    """A DaemonSet."""
    spec: Json = new.get("spec") or {}
    yield from _selection(spec, (old or {}).get("spec") if old else None, "daemonset")
    yield from check_template(spec.get("template"), "spec.template")
    yield from _restarts(spec, ("Always",))
    strategy = spec.get("updateStrategy") or {}
    yield from one_of(strategy.get("type"), ("OnDelete", "RollingUpdate"), "spec.updateStrategy.type")


def check_stateful_set(new: Json, old: Json | None) -> Iterator[Cause]:
    """A StatefulSet."""
    spec: Json = new.get("spec") or {}
    yield from _selection(spec, None, "statefulset")
    claims = [(claim.get("metadata") or {}).get("name") or "" for claim in spec.get("volumeClaimTemplates") or ()]
    yield from check_template(spec.get("template"), "spec.template", claims)
    yield from _restarts(spec, ("Always",))
    yield from at_least(spec.get("replicas"), 0, "spec.replicas")
    yield from one_of(spec.get("podManagementPolicy"), ("OrderedReady", "Parallel"), "spec.podManagementPolicy")
    strategy = spec.get("updateStrategy") or {}
    yield from one_of(strategy.get("type"), ("OnDelete", "RollingUpdate"), "spec.updateStrategy.type")
    if old is not None and _without(spec, _STATEFUL_SET_FREE) != _without(old.get("spec") or {}, _STATEFUL_SET_FREE):
        free = ", ".join(f"'{name}'" for name in _STATEFUL_SET_FREE[:-1])
        detail = (
            f"updates to statefulset spec for fields other than {free} and '{_STATEFUL_SET_FREE[-1]}' are forbidden"
        )
        yield causes.forbidden("spec", detail)


def _without(spec: Json, fields: Sequence[str]) -> Json:
    return {key: value for key, value in spec.items() if key not in fields}


def check_job(new: Json, old: Json | None) -> Iterator[Cause]:
    """A Job."""
    spec: Json = new.get("spec") or {}
    yield from _job_spec(spec, "spec")
    if old is None:
        return
    was: Json = old.get("spec") or {}
    fixed = ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"]
    if spec.get("completionMode") != "Indexed":
        fixed.append("completions")
    if not was.get("suspend"):
        fixed.append("template")
    for field in fixed:
        if spec.get(field) != was.get(field):
            yield causes.invalid(f"spec.{field}", spec.get(field), _IMMUTABLE)


def _job_spec(spec: Json, path: str) -> Iterator[Cause]:
    for field in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"):
        yield from at_least(spec.get(field), 0, f"{path}.{field}")
    yield from at_least(spec.get("activeDeadlineSeconds"), 0, f"{path}.activeDeadlineSeconds")
    yield from one_of(spec.get("completionMode"), ("Indexed", "NonIndexed"), f"{path}.completionMode")
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        detail = "when completion mode is Indexed"
        yield causes.required(f"{path}.completions", detail)
    yield from check_template(spec.get("template"), f"{path}.template")
    yield from _restarts(spec, ("Never", "OnFailure"), f"{path}.template")
    if spec.get("selector"):
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if not selects(spec["selector"], labels):
            detail = "`selector` does not match template `labels`"
            yield causes.invalid(f"{path}.template.metadata.labels", labels, detail)


def check_cron_job(new: Json, _: Json | None) -> Iterator[Cause]:
    """A CronJob."""
    spec: Json = new.get("spec") or {}
    text = spec.get("schedule")
    if not text:
        yield causes.required("spec.schedule")
    elif problem := names.schedule(text):
        yield causes.invalid("spec.schedule", text, problem)
    policies = ("Allow", "Forbid", "Replace")
    yield from one_of(spec.get("concurrencyPolicy"), policies, "spec.concurrencyPolicy")
    for field in ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        yield from at_least(spec.get(field), 0, f"spec.{field}")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    yield from _job_spec(job, "spec.jobTemplate.spec")


def check_disruption_budget(new: Json, _: Json | None) -> Iterator[Cause]:
    """A PodDisruptionBudget."""
    spec: Json = new.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield causes.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        yield from _percentage(spec.get(field), f"spec.{field}")
    yield from check_selector(spec.get("selector"), "spec.selector")

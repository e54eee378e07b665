"""Rules of HorizontalPodAutoscalers: limits, metrics and their targets, behavior.

Source: ``k8s.io/kubernetes/pkg/apis/autoscaling/validation``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

Json = dict[str, Any]

_SOURCES = {
    "ContainerResource": "containerResource", "External": "external", "Object": "object", "Pods": "pods",
    "Resource": "resource",
}  # fmt: skip
"""The types of metrics, with their fields."""
_TARGETS = ("AverageValue", "Utilization", "Value")
_POLICIES = ("Percent", "Pods")
_SELECTIONS = ("Disabled", "Max", "Min")
_LONGEST_WINDOW_S = 3600
_LONGEST_PERIOD_S = 1800


def check_autoscaler(new: Json, _: Json | None) -> Iterator[Cause]:
    """A HorizontalPodAutoscaler of ``autoscaling/v2``."""
    spec: Json = new.get("spec") or {}
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas", 0)
    if least < 1:
        yield causes.invalid("spec.minReplicas", least, "must be greater than or equal to 1")
    if most < 1:
        yield causes.invalid("spec.maxReplicas", most, "must be greater than 0")
    elif most < least:
        yield causes.invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
    for field in ("kind", "name"):
        if not (spec.get("scaleTargetRef") or {}).get(field):
            yield causes.required(f"spec.scaleTargetRef.{field}")
    for index, metric in enumerate(spec.get("metrics") or ()):
        yield from _metric(metric, f"spec.metrics[{index}]")
    for direction in ("scaleUp", "scaleDown"):
        rules = (spec.get("behavior") or {}).get(direction)
        if rules is not None:
            yield from _rules(rules, f"spec.behavior.{direction}")


def _metric(metric: Json, path: str) -> Iterator[Cause]:
    field = _SOURCES.get(metric.get("type", ""))
    if not metric.get("type"):
        yield causes.required(f"{path}.type", "must specify a metric source type")
    elif field is None:
        yield causes.unsupported(f"{path}.type", metric["type"], _SOURCES)
    elif metric.get(field) is None:
        yield causes.required(f"{path}.{field}", "must populate information for the given metric source")
    else:
        yield from _source(metric[field], f"{path}.{field}", by_resource=field in ("resource", "containerResource"))


def _source(source: Json, path: str, *, by_resource: bool) -> Iterator[Cause]:
    if by_resource and not source.get("name"):
        yield causes.required(f"{path}.name", "must specify a resource name")
    if path.endswith(".containerResource") and not source.get("container"):
        yield causes.required(f"{path}.container", "must specify a container")
    target: Json = source.get("target") or {}
    if not target.get("type"):
        yield causes.required(f"{path}.target.type", "must specify a metric target type")
    elif target["type"] not in _TARGETS:
        yield causes.invalid(
            f"{path}.target.type", target["type"], "must be either Utilization, Value, or AverageValue"
        )
    if not by_resource:
        return
    utilization = target.get("averageUtilization")
    if utilization is not None and utilization < 1:
        yield causes.invalid(f"{path}.target.averageUtilization", utilization, "must be greater than 0")
    if utilization is None and target.get("averageValue") is None:
        detail = "must set either a target raw value or a target utilization"
        yield causes.required(f"{path}.target.averageUtilization", detail)
    if utilization is not None and target.get("averageValue") is not None:
        detail = "may not set both a target raw value and a target utilization"
        yield causes.forbidden(f"{path}.target.averageValue", detail)


def _rules(rules: Json, path: str) -> Iterator[Cause]:
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and window < 0:
        yield causes.invalid(f"{path}.stabilizationWindowSeconds", window, "must be greater than or equal to zero")
    if window is not None and window > _LONGEST_WINDOW_S:
        detail = f"must be less than or equal to {_LONGEST_WINDOW_S}"
        yield causes.invalid(f"{path}.stabilizationWindowSeconds", window, detail)
    selection = rules.get("selectPolicy")
    if selection is not None and selection not in _SELECTIONS:
        yield causes.unsupported(f"{path}.selectPolicy", selection, _SELECTIONS)
    policies: Sequence[Json] = rules.get("policies") or ()
    if not policies:
        yield causes.required(f"{path}.policies", "must specify at least one Policy")
    for index, policy in enumerate(policies):
        yield from _policy(policy, f"{path}.policies[{index}]")


def _policy(policy: Json, path: str) -> Iterator[Cause]:
    if policy.get("type") not in _POLICIES:
        yield causes.unsupported(f"{path}.type", policy.get("type", ""), _POLICIES)
    value, period = policy.get("value", 0), policy.get("periodSeconds", 0)
    if value <= 0:
        yield causes.invalid(f"{path}.value", value, "must be greater than zero")
    if period <= 0:
        yield causes.invalid(f"{path}.periodSeconds", period, "must be greater than zero")
    if period > _LONGEST_PERIOD_S:
        yield causes.invalid(f"{path}.periodSeconds", period, f"must be less than or equal to {_LONGEST_PERIOD_S}")

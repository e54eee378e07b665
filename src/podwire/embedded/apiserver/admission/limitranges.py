"""What the LimitRanges of a namespace set in a pod, and what they refuse.

The words are those of Kubernetes' plugin LimitRanger (``plugin/pkg/admission/limitranger``).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.admission.podresources import Amount, Resources, parse_resources, pod_resources

Object = dict[str, Any]

ANNOTATION = "kubernetes.io/limit-ranger"


def set_defaults(pod: Object, limit_range: Mapping[str, Any]) -> None:
    """Gives containers without requests or limits those of the LimitRange, in place, and says so in an annotation."""
    requests: Object = {}
    limits: Object = {}
    for item in _items(limit_range, "Container"):
        requests |= item.get("defaultRequest") or {}
        limits |= item.get("default") or {}
    done: list[str] = []
    for field, noun in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(field) or ():
            for bound, defaults in (("request", requests), ("limit", limits)):
                added = _fill(container, f"{bound}s", defaults)
                if added:
                    done.append(f"{', '.join(sorted(added))} {bound} for {noun} {container['name']}")
    if done:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(done)}"


def _items(limit_range: Mapping[str, Any], kind: str) -> Iterator[Object]:
    for item in (limit_range.get("spec") or {}).get("limits") or ():
        if item.get("type") == kind:
            yield item


def _fill(container: Object, field: str, defaults: Object) -> list[str]:
    """Adds what is missing; returns the names of what was added."""
    present = (container.get("resources") or {}).get(field) or {}
    added = [name for name in defaults if name not in present]
    if added:
        resources = container.get("resources") or {}
        container["resources"] = {**resources, field: {**present, **{name: defaults[name] for name in added}}}
    return added


def check_pod(spec: Mapping[str, Any], limit_range: Mapping[str, Any]) -> list[str]:
    """The problems of a pod with a LimitRange, without duplicates, in the order of the limits."""
    problems: list[str] = []
    for item in _items(limit_range, "Container"):
        for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
            resources = container.get("resources") or {}
            requests, limits = parse_resources(resources.get("requests")), parse_resources(resources.get("limits"))
            problems += _check(item, requests, limits)
    for item in _items(limit_range, "Pod"):
        requests = pod_resources(spec, "requests", overhead=False)
        problems += _check(item, requests, pod_resources(spec, "limits", overhead=False))
    return list(dict.fromkeys(problems))


def check_claim(spec: Mapping[str, Any], limit_range: Mapping[str, Any]) -> list[str]:
    """The problems of a PersistentVolumeClaim with a LimitRange."""
    requests = parse_resources((spec.get("resources") or {}).get("requests"))
    kind = "PersistentVolumeClaim"
    problems: list[str] = []
    for item in _items(limit_range, kind):
        for name, least in sorted(parse_resources(item.get("min")).items()):
            problems += _least(kind, name, least, requests, {})
        for name, most in sorted(parse_resources(item.get("max")).items()):
            requested = requests.get(name)
            if requested is None:
                problems.append(f"maximum {name} usage per {kind} is {most}.  No request is specified")
            elif requested.milli > most.milli:
                problems.append(f"maximum {name} usage per {kind} is {most}, but request is {requested}")
    return problems


def _check(item: Mapping[str, Any], requests: Resources, limits: Resources) -> Iterator[str]:
    kind = item["type"]
    for name, least in sorted(parse_resources(item.get("min")).items()):
        yield from _least(kind, name, least, requests, limits)
    for name, most in sorted(parse_resources(item.get("max")).items()):
        yield from _most(kind, name, most, requests, limits)
    for name, ratio in sorted(parse_resources(item.get("maxLimitRequestRatio")).items()):
        yield from _ratio(f"{name} max limit to request ratio per {kind} is {ratio}", ratio, requests.get(name),
                          limits.get(name))  # fmt: skip


def _least(kind: str, name: str, least: Amount, requests: Resources, limits: Resources) -> Iterator[str]:
    text = f"minimum {name} usage per {kind} is {least}"
    request, limit = requests.get(name), limits.get(name)
    if request is None:
        yield f"{text}.  No request is specified"
    elif request.milli < least.milli:
        yield f"{text}, but request is {request}"
    elif limit is not None and limit.milli < least.milli:
        yield f"{text}, but limit is {limit}"


def _most(kind: str, name: str, most: Amount, requests: Resources, limits: Resources) -> Iterator[str]:
    text = f"maximum {name} usage per {kind} is {most}"
    request, limit = requests.get(name), limits.get(name)
    if limit is None:
        yield f"{text}.  No limit is specified"
    elif limit.milli > most.milli:
        yield f"{text}, but limit is {limit}"
    elif request is not None and request.milli > most.milli:
        yield f"{text}, but request is {request}"


def _ratio(text: str, ratio: Amount, request: Amount | None, limit: Amount | None) -> Iterator[str]:
    if request is None or not request.milli:
        yield f"{text}, but no request is specified or request is 0"
    elif limit is None or not limit.milli:
        yield f"{text}, but no limit is specified or limit is 0"
    elif limit.milli * 1000 > ratio.milli * request.milli:
        yield f"{text}, but provided ratio is {limit.milli / request.milli:.6f}"

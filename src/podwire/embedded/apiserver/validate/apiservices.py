"""Checks APIServices. Source: ``k8s.io/kube-aggregator/pkg/apis/apiregistration/validation``."""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names

Json = dict[str, Any]


def check_api_service(new: Json, _: Json | None) -> Iterator[Cause]:
    """Name, group, version, priorities, and the Service with its authorities."""
    spec: Json = new.get("spec") or {}
    group, version = spec.get("group") or "", spec.get("version") or ""
    name = new["metadata"].get("name") or ""
    if name != f"{version}.{group}":
        expected_name = causes.quoted(f"{version}.{group}")
        yield causes.invalid("metadata.name", name, f'must be `spec.version+"."+spec.group`: {expected_name}')
    if not group and version != "v1":
        detail = "only v1 may have an empty group and it better be legacy kube"
        yield causes.required("spec.group", detail)
    if group and (problem := names.subdomain(group)):
        yield causes.invalid("spec.group", group, problem)
    if problem := names.label_1035(version):
        yield causes.invalid("spec.version", version, problem)
    for field, limit in (("groupPriorityMinimum", 20000), ("versionPriority", 1000)):
        value = spec.get(field) or 0
        if not 0 < value <= limit:
            yield causes.invalid(f"spec.{field}", value, f"must be positive and less than {limit}")
    yield from _check_service(spec)


def _check_service(spec: Json) -> Iterator[Cause]:
    service, bundle, insecure = spec.get("service"), spec.get("caBundle") or "", bool(spec.get("insecureSkipTLSVerify"))
    if service is None:
        if bundle:
            size = len(bundle) * 3 // 4 - bundle[-2:].count("=")
            yield causes.invalid("spec.caBundle", f"{size} bytes", "local APIServices may not have a caBundle")
        if insecure:
            detail = "local APIServices may not have insecureSkipTLSVerify"
            yield causes.invalid("spec.insecureSkipTLSVerify", insecure, detail)
        return
    for field in ("namespace", "name"):
        if not service.get(field):
            yield causes.required(f"spec.service.{field}")
    if insecure and bundle:
        yield causes.invalid("spec.insecureSkipTLSVerify", insecure, "may not be true if caBundle is present")

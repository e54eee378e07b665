"""Checks webhook configurations.

Source: ``k8s.io/kubernetes/pkg/apis/admissionregistration/validation``.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.expressions import check_conditions
from podwire.embedded.apiserver.validate.workloads import check_selector

Json = dict[str, Any]

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_CHOICES = {
    "failurePolicy": ("Fail", "Ignore"), "matchPolicy": ("Equivalent", "Exact"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
}  # fmt: skip
_TIMEOUT_S = (1, 30)


def check_configuration(new: Json, old: Json | None) -> Iterator[Cause]:
    """A MutatingWebhookConfiguration or a ValidatingWebhookConfiguration."""
    del old
    known_names: set[str] = set()
    for index, hook in enumerate(new.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        yield from _name(hook.get("name") or "", f"{path}.name")
        if hook.get("name") in known_names:
            yield causes.duplicate(f"{path}.name", hook["name"])
        known_names.add(str(hook.get("name")))
        yield from _webhook(hook, path)


def _name(name: str, path: str) -> Iterator[Cause]:
    if not name:
        yield causes.required(path)
    elif problem := names.subdomain(name):
        yield causes.invalid(path, name, problem)
    elif name.count(".") < 2:
        yield causes.invalid(path, name, "should be a domain with at least three segments separated by dots")


def _webhook(hook: Json, path: str) -> Iterator[Cause]:
    yield from _versions(hook.get("admissionReviewVersions") or [], f"{path}.admissionReviewVersions")
    for position, rule in enumerate(hook.get("rules") or ()):
        yield from check_rule(rule, f"{path}.rules[{position}]")
    for field, supported in _CHOICES.items():
        if hook.get(field) is not None and hook[field] not in supported:
            yield causes.unsupported(f"{path}.{field}", hook[field], supported)
    effects = hook.get("sideEffects")
    if not effects:
        yield causes.required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
    elif effects not in ("None", "NoneOnDryRun"):
        yield causes.unsupported(f"{path}.sideEffects", effects, ("None", "NoneOnDryRun"))
    timeout = hook.get("timeoutSeconds")
    if timeout is not None and not _TIMEOUT_S[0] <= timeout <= _TIMEOUT_S[1]:
        detail = "the timeout value must be between 1 and 30 seconds"
        yield causes.invalid(f"{path}.timeoutSeconds", timeout, detail)
    for field in ("namespaceSelector", "objectSelector"):
        yield from check_selector(hook.get(field), f"{path}.{field}")
    yield from check_client(hook.get("clientConfig") or {}, f"{path}.clientConfig")
    yield from check_conditions(hook.get("matchConditions") or [], f"{path}.matchConditions", params=False)


def _versions(versions: list[str], path: str) -> Iterator[Cause]:
    if not versions:
        yield causes.required(path, "must specify one of v1, v1beta1")
    elif "v1" not in versions:
        yield causes.invalid(path, versions, "must include v1, the only version that is sent")


def check_rule(rule: Json, path: str) -> Iterator[Cause]:
    """Operations, groups, versions, resources and scope."""
    operations = rule.get("operations") or []
    if not operations:
        yield causes.required(f"{path}.operations")
    for index, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield causes.unsupported(f"{path}.operations[{index}]", operation, _OPERATIONS)
    for field in ("operations", "apiGroups", "apiVersions"):
        listed = rule.get(field) or []
        if not listed and field != "operations":
            yield causes.required(f"{path}.{field}")
        if "*" in listed and len(listed) > 1:
            yield causes.invalid(f"{path}.{field}", listed, "if '*' is present, must not specify other values")
    yield from _resources(rule.get("resources") or [], f"{path}.resources")
    if rule.get("scope") not in (None, "*", "Cluster", "Namespaced"):
        yield causes.unsupported(f"{path}.scope", rule["scope"], ("*", "Cluster", "Namespaced"))


def _resources(resources: list[str], path: str) -> Iterator[Cause]:
    if not resources:
        yield causes.required(path)
    for index, resource in enumerate(resources):
        if not resource:
            yield causes.required(f"{path}[{index}]")
        elif resource != "*/*" and "*/*" in resources:
            yield causes.invalid(path, resources, "if '*/*' is present, must not specify other resources")
            break


def check_client(client: Json, path: str) -> Iterator[Cause]:
    """Where a webhook is: URL or Service."""
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield causes.required(path, "exactly one of url or service is required")
    elif service is not None:
        yield from _service(service, f"{path}.service")
    else:
        yield from _url(str(url), f"{path}.url")


def _service(service: Json, path: str) -> Iterator[Cause]:
    for field in ("name", "namespace"):
        if not service.get(field):
            yield causes.required(f"{path}.{field}", f"service {field} is required")
    port = service.get("port")
    if port is not None and not 0 < port < 1 << 16:
        yield causes.invalid(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    if service.get("path") and not service["path"].startswith("/"):
        yield causes.invalid(f"{path}.path", service["path"], "must start with a '/'")


def _url(url: str, path: str) -> Iterator[Cause]:
    form = "; desired format: https://host[/path]"
    try:
        split_url = urlsplit(url)
        port = split_url.port
    except ValueError as failure:
        yield causes.required(path, f"url must be a valid URL: {failure}{form}")
        return
    if split_url.scheme != "https":
        yield causes.invalid(path, split_url.scheme, f"'https' is the only allowed URL scheme{form}")
    if not split_url.hostname or port == 0:
        yield causes.invalid(path, split_url.netloc, f"host must be specified{form}")
    if split_url.username is not None or split_url.password is not None:
        yield causes.invalid(path, split_url.username, "user information is not permitted in the URL")
    if split_url.fragment:
        yield causes.invalid(path, split_url.fragment, "fragments are not permitted in the URL")
    if split_url.query:
        yield causes.invalid(path, split_url.query, "query parameters are not permitted in the URL")

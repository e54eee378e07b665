"""The condition ``Available`` of an APIService."""

from typing import Any

from podwire.embedded.apiserver.deletion import set_condition

Object = dict[str, Any]


def is_available(service: Object) -> bool:
    """Whether an APIService has the condition."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Available" and item.get("status") == "True" for item in conditions)


def set_local(service: Object, now: str) -> None:
    """Sets the condition of an APIService without a Service."""
    status = service.setdefault("status", {})
    set_condition(status, "Available", "True", ("Local", "Local APIServices are always available"), now)

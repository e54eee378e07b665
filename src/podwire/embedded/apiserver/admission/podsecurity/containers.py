"""What the controls of Pod Security read of a pod, and how their messages list names."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]


def containers(spec: Object) -> list[Object]:
    """The containers of all kinds, in the order in which Kubernetes reports them."""
    return [
        container
        for field in ("initContainers", "containers", "ephemeralContainers")
        for container in spec.get(field) or ()
    ]


def security(holder: Object) -> Object:
    """The securityContext of a pod's spec or of a container."""
    context: Object = holder.get("securityContext") or {}
    return context


def names(spec: Object, bad: Callable[[Object], bool]) -> list[str]:
    """The names of the containers that ``bad`` selects."""
    return [container["name"] for container in containers(spec) if bad(container)]


def listed(items: Iterable[str]) -> str:
    """``"a", "b"``."""
    return ", ".join(f'"{item}"' for item in items)


def plural(noun: str, items: Iterable[str]) -> str:
    """The noun, with an s unless there is exactly one item."""
    return noun if len(list(items)) == 1 else f"{noun}s"


def counted(items: list[str], noun: str = "container") -> str:
    """``container "a"`` or ``containers "a", "b"``."""
    return f"{plural(noun, items)} {listed(items)}"


def setters(pod: bool, bad: list[str]) -> str:  # noqa: FBT001
    """The pod, the containers or both that set a wrong value; empty when nothing does."""
    return " and ".join((["pod"] if pod else []) + ([counted(bad)] if bad else []))

"""Whether an APIService is available, and whether an installed APIService may replace it.

This server serves ``metrics.k8s.io`` itself, with a local APIService that ``kubectl get apiservices`` lists. On other
clusters this APIService does not exist before metrics-server is installed, so the manifest of metrics-server creates
it. To let that succeed here, an APIService with a Service replaces the local one when it is created. Helm refuses to
overwrite objects that it did not install, so Helm gets NotFound for the local one. When the installed APIService is
deleted, the local one comes back soon after.
"""

from typing import Any

from podwire.embedded.apiserver.deletion import set_condition
from podwire.embedded.apiserver.store import StoredObject

Object = dict[str, Any]

TABLE = "apiregistration.k8s.io/apiservices"

INSTALLED_GROUPS = ("metrics.k8s.io",)
"""Groups of this server for which people install an APIService of their own."""
_INSTALLERS = ("helm",)
"""The User-Agent prefixes of clients that create an object only when a look-up by its name finds none."""


def gives_way(entry: StoredObject) -> bool:
    """Whether a stored object is a local APIService that an APIService with a Service replaces when it is created."""
    if entry.table != TABLE or entry.name.partition(".")[2] not in INSTALLED_GROUPS:
        return False
    return not (entry.object().get("spec") or {}).get("service")


def hides(entry: StoredObject, user_agent: str) -> bool:
    """Whether a look-up by name answers NotFound, so that this client creates its own object."""
    return entry.table == TABLE and user_agent.lower().startswith(_INSTALLERS) and gives_way(entry)


def is_available(service: Object) -> bool:
    """Whether an APIService has the condition."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Available" and item.get("status") == "True" for item in conditions)


def set_local(service: Object, now: str) -> None:
    """Sets the condition of an APIService without a Service."""
    status = service.setdefault("status", {})
    set_condition(status, "Available", "True", ("Local", "Local APIServices are always available"), now)

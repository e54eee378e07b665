"""Whether an APIService is available, and whether it gives way to another one.

This server serves ``metrics.k8s.io`` itself, with a local APIService that ``kubectl get apiservices`` lists. Other
clusters have none before metrics-server is installed, so its manifest must be able to create one: an APIService with a
Service takes the place of the local one, and Helm, which installs nothing over an object of somebody else, does not
find the local one by its name. Soon after that is deleted, the local one is back.
"""

from typing import Any

from podwire.embedded.apiserver.deletion import set_condition
from podwire.embedded.apiserver.store import StoredObject

Object = dict[str, Any]

TABLE = "apiregistration.k8s.io/apiservices"

INSTALLED_GROUPS = ("metrics.k8s.io",)
"""Groups of this server for which people install an APIService of their own."""
_INSTALLERS = ("helm",)
"""How the User-Agent of a client begins that looks an object up by its name to learn whether it may create it."""


def gives_way(entry: StoredObject) -> bool:
    """Whether a stored object is a local APIService that an APIService with a Service replaces when it is created."""
    if entry.table != TABLE or entry.name.partition(".")[2] not in INSTALLED_GROUPS:
        return False
    return not (entry.object().get("spec") or {}).get("service")


def hides(entry: StoredObject, user_agent: str) -> bool:
    """Whether a client must not find an object by its name, since it would then not create its own."""
    return entry.table == TABLE and user_agent.lower().startswith(_INSTALLERS) and gives_way(entry)


def is_available(service: Object) -> bool:
    """Whether an APIService has the condition."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Available" and item.get("status") == "True" for item in conditions)


def set_local(service: Object, now: str) -> None:
    """Sets the condition of an APIService without a Service."""
    status = service.setdefault("status", {})
    set_condition(status, "Available", "True", ("Local", "Local APIServices are always available"), now)

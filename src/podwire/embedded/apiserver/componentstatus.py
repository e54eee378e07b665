"""ComponentStatus objects: the health of the control plane's components, computed for each request.

Kubernetes asks the health endpoints of its components. This API server decides by itself: ``etcd-0`` is its own
database, and another component counts as healthy while a watch of one of the component's users is open. The local
cluster's scheduler runs in the process of the controllers and shares their watches.
"""

from typing import Any, Protocol

import msgspec

from podwire.embedded.apiserver import failures, views
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.http.message import Response

Object = dict[str, Any]

_MANAGER, _SCHEDULER = "system:kube-controller-manager", "system:kube-scheduler"
_USERS = {"controller-manager": (_MANAGER,), "etcd-0": (), "scheduler": (_SCHEDULER, _MANAGER)}
"""Components by name, with the users whose watches they have open; a component inside the API server has no user."""
_WARNING = (("Warning", '299 - "v1 ComponentStatus is deprecated in v1.19+"'),)

_encode = msgspec.json.Encoder().encode


class OpenWatches(Protocol):
    """The source of the users with open watches."""

    def users(self) -> frozenset[str]:
        """The users that have a watch open."""
        ...


class ComponentStatuses:
    """Answers reads of ``/api/v1/componentstatuses``."""

    def __init__(self, reader: ObjectReader, watches: OpenWatches) -> None:
        self._reader = reader
        self._watches = watches

    def answer(self, call: Call) -> Response:
        """One object or the list; label and field selectors are ignored, as in Kubernetes.

        Raises: NotFound for a component that does not exist.
        """
        users = self._watches.users()
        objects = [_status(name, users) for name in _USERS if call.name in ("", name)]
        if not call.name:
            answer = self._list(call, objects)
        elif objects:
            answer = self._reader.render_object(call, objects[0])
        else:
            raise failures.not_found(call.kind, call.name)
        return msgspec.structs.replace(answer, headers=(*answer.headers, *_WARNING))

    def _list(self, call: Call, objects: list[Object]) -> Response:
        view = views.choose(call.kind, call.accept, call.query.get("includeObject", ""))
        if view.form == views.TABLE:
            return self._reader.answer(view, _encode(self._reader.table(view, objects, {})))
        noun = {"kind": "ComponentStatusList", "apiVersion": "v1"}
        if view.form == views.METADATA:
            noun = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            objects = [views.metadata_only(obj) for obj in objects]
        return self._reader.answer(view, _encode({**noun, "metadata": {}, "items": objects}))


def _status(name: str, users: frozenset[str]) -> Object:
    own = _USERS[name]
    works = not own or not users.isdisjoint(own)
    message = "ok" if works else f"no watch of user {' or '.join(own)} is open"
    condition = {"type": "Healthy", "status": "True" if works else "False", "message": message}
    return {"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]}

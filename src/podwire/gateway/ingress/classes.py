"""Which Ingresses a controller serves, by their class.

An Ingress names its class in ``spec.ingressClassName`` or in the older annotation. One that names none belongs to the
class that is marked as the default; of several defaults the newest is meant, then the one whose name comes first, as
Kubernetes' admission chooses. Source: Kubernetes documentation, "Ingress", section "Default IngressClass".
"""

from collections.abc import Iterable

from podwire.model.ingress import CLASS_ANNOTATION, Ingress, IngressClass


def served_classes(classes: Iterable[IngressClass], controller: str) -> frozenset[str]:
    """The names of the classes of a controller."""
    return frozenset(entry.metadata.name for entry in classes if entry.spec.controller == controller)


def default_class(classes: Iterable[IngressClass]) -> str:
    """The name of the default class, empty for none."""
    marked = sorted((entry for entry in classes if entry.is_default), key=lambda entry: entry.metadata.name)
    newest = max((entry.metadata.creation_timestamp or "" for entry in marked), default="")
    return next((entry.metadata.name for entry in marked if (entry.metadata.creation_timestamp or "") == newest), "")


def class_of(ingress: Ingress, default: str) -> str:
    """The name of the class that an Ingress belongs to, empty for none."""
    if ingress.spec.ingress_class_name is not None:
        return ingress.spec.ingress_class_name
    return ingress.metadata.annotations.get(CLASS_ANNOTATION, default)


def served_ingresses(
    ingresses: Iterable[Ingress], classes: Iterable[IngressClass], controller: str
) -> tuple[Ingress, ...]:
    """The Ingresses of a controller, the oldest first, then by key: the order in which they win conflicts."""
    known = tuple(classes)
    served, default = served_classes(known, controller), default_class(known)
    ours = (ingress for ingress in ingresses if class_of(ingress, default) in served)
    return tuple(sorted(ours, key=_age))


def _age(ingress: Ingress) -> tuple[str, str, str]:
    meta = ingress.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name

"""Which Ingresses are migrated: those of the classes and namespaces that are asked for, the oldest first. Pure."""

from collections.abc import Collection, Iterable

from podwire.gateway.ingress.classes import class_of
from podwire.model.ingress import Ingress


def selected(
    ingresses: Iterable[Ingress], default: str, classes: Collection[str], namespaces: Collection[str]
) -> tuple[Ingress, ...]:
    """The Ingresses of classes and namespaces; none asked for means all. ``default`` is the class of those without."""
    chosen = (
        ingress
        for ingress in ingresses
        if (not classes or class_of(ingress, default) in classes)
        and (not namespaces or ingress.metadata.namespace in namespaces)
    )
    return tuple(sorted(chosen, key=_age))


def _age(ingress: Ingress) -> tuple[str, str, str]:
    meta = ingress.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name

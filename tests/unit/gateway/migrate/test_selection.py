"""Which Ingresses are migrated, and in which order."""

from podwire.gateway.migrate.selection import selected
from podwire.model.ingress import Ingress, IngressSpec
from podwire.model.meta import ObjectMeta


def _ingress(name: str, created: str, class_name: str | None = None, namespace: str = "shop") -> Ingress:
    meta = ObjectMeta(name=name, namespace=namespace, creation_timestamp=created)
    return Ingress(metadata=meta, spec=IngressSpec(ingress_class_name=class_name))


INGRESSES = (
    _ingress("new", "2026-02-01T00:00:00Z", "nginx"),
    _ingress("old", "2026-01-01T00:00:00Z", "nginx"),
    _ingress("bare", "2026-03-01T00:00:00Z"),
    _ingress("away", "2026-01-01T00:00:00Z", "other", "away"),
)


def _names(classes: tuple[str, ...] = (), namespaces: tuple[str, ...] = ()) -> list[str]:
    return [ingress.metadata.name for ingress in selected(INGRESSES, "nginx", classes, namespaces)]


def test_all_are_migrated_the_oldest_first() -> None:
    assert _names() == ["away", "old", "new", "bare"]


def test_an_ingress_without_a_class_has_the_default_one() -> None:
    assert _names(classes=("nginx",)) == ["old", "new", "bare"]


def test_namespaces_choose_ingresses() -> None:
    assert _names(namespaces=("away",)) == ["away"]

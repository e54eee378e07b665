"""Which class an Ingress belongs to, and which Ingresses a controller serves."""

from podwire.gateway.ingress.classes import class_of, default_class, served_classes, served_ingresses
from podwire.model.ingress import (
    CLASS_ANNOTATION,
    DEFAULT_CLASS_ANNOTATION,
    Ingress,
    IngressClass,
    IngressClassSpec,
    IngressSpec,
)
from podwire.model.meta import ObjectMeta

OURS = "podwire.io/ingress"


def _class(name: str, created: str = "", controller: str = OURS, *, default: bool = False) -> IngressClass:
    annotations = {DEFAULT_CLASS_ANNOTATION: "true"} if default else {}
    meta = ObjectMeta(name=name, creation_timestamp=created or None, annotations=annotations)
    return IngressClass(metadata=meta, spec=IngressClassSpec(controller=controller))


def _ingress(class_name: str | None = None, annotation: str = "") -> Ingress:
    annotations = {CLASS_ANNOTATION: annotation} if annotation else {}
    meta = ObjectMeta(name="web", namespace="shop", annotations=annotations)
    return Ingress(metadata=meta, spec=IngressSpec(ingress_class_name=class_name))


def test_the_newest_default_counts_then_the_first_name() -> None:
    assert default_class([_class("a")]) == ""
    old, new = _class("old", "2026-01-01T00:00:00Z", default=True), _class("new", "2026-02-01T00:00:00Z", default=True)
    assert default_class([old, new]) == "new"
    assert default_class([_class("b", default=True), _class("a", default=True)]) == "a"


def test_the_field_counts_before_the_annotation() -> None:
    assert class_of(_ingress("a", "b"), "c") == "a"
    assert class_of(_ingress(None, "b"), "c") == "b"
    assert class_of(_ingress(), "c") == "c"
    assert class_of(_ingress(""), "c") == ""


def test_a_controller_serves_its_classes_alone() -> None:
    classes = [_class("ours", default=True), _class("foreign", controller="k8s.io/nginx")]
    assert served_classes(classes, OURS) == {"ours"}
    ingresses = [_ingress("ours"), _ingress("foreign"), _ingress("absent"), _ingress()]
    served = served_ingresses(ingresses, classes, OURS)
    assert [ingress.spec.ingress_class_name for ingress in served] == ["ours", None]

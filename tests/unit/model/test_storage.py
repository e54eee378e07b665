"""StorageClasses: which one claims without a class get."""

import msgspec
import pytest

from podwire.model.storage import StorageClass, default_class


def storage_class(name: str, created: str, default: str = "true") -> StorageClass:
    remarks = {"storageclass.kubernetes.io/is-default-class": default}
    meta = {"name": name, "creationTimestamp": created, "annotations": remarks}
    return msgspec.convert({"metadata": meta}, StorageClass)


OLD, NEW = storage_class("b", "2026-01-01T00:00:00Z"), storage_class("c", "2026-02-01T00:00:00Z")
TWIN = storage_class("a", "2026-02-01T00:00:00Z")
PLAIN = storage_class("d", "2026-03-01T00:00:00Z", "false")


@pytest.mark.parametrize(
    ("classes", "chosen"), [((), ""), ((PLAIN,), ""), ((OLD, NEW, PLAIN), "c"), ((NEW, TWIN), "a")]
)
def test_newest_default_class_is_chosen(classes: tuple[StorageClass, ...], chosen: str) -> None:
    result = default_class(list(classes))
    assert (result.metadata.name if result is not None else "") == chosen

"""Reading one's own writes, and Services that may go."""

from typing import cast

import pytest

from podwire.kube.informer import Informer, OnChange
from podwire.kube.ownwrites import OwnWrites, number
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod


class Changes:
    """The resource version of an informer, and its one subscriber."""

    resource_version = "5"

    def subscribe(self, callback: OnChange[Pod]) -> None:
        self.callback = callback


def test_an_owner_waits_until_the_informer_shows_its_last_write() -> None:
    informer = Changes()
    own = OwnWrites(cast("Informer[Pod]", informer))
    assert own.caught_up("o")
    own.wrote("o", {"metadata": {"resourceVersion": "7"}})
    own.wrote("o", {"metadata": {"resourceVersion": "6"}})
    assert not own.caught_up("o")
    assert own.caught_up("other")
    informer.resource_version = "10"
    assert own.caught_up("o")


def test_a_deleted_pod_is_remembered_until_the_informer_drops_it() -> None:
    informer = Changes()
    own = OwnWrites(cast("Informer[Pod]", informer))
    own.deleted("u")
    assert own.is_deleted("u")
    pod = Pod(metadata=ObjectMeta(uid="u", deletion_timestamp="t"))
    informer.callback("k", pod, pod)
    assert own.is_deleted("u")
    informer.callback("k", pod, None)
    assert not own.is_deleted("u")


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("", 0), ("x", 0)])
def test_a_version_that_is_not_a_number_is_0(text: str, value: int) -> None:
    assert number(text) == value

"""Rules of VolumeAttributesClasses."""

from collections.abc import Callable
from typing import Any

import pytest

CLASSES = "/apis/storage.k8s.io/v1/volumeattributesclasses"
VALID: dict[str, Any] = {"metadata": {"name": "x"}, "driverName": "disk.example.com", "parameters": {"iops": "3000"}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"driverName": ""}, "driverName: Required value"),
        ({"driverName": "a b"}, 'driverName: Invalid value: "a b"'),
        ({"parameters": {}}, "parameters: Required value: must contain at least one key/value pair"),
        ({"parameters": {"": "x"}}, "parameters: Invalid value"),
        ({"parameters": {str(number): "x" for number in range(513)}}, "parameters: Too many: 513"),
        ({"parameters": {"x": "y" * (256 << 10)}}, "parameters: Too long"),
    ],
)
def test_wrong_attributes_class_is_refused(play: Callable[..., None], change: dict[str, Any], problem: str) -> None:
    async def scenario(api: Any) -> None:
        status, answer = await api("POST", CLASSES, {**VALID, **change})
        assert status == 422 and problem in answer["message"], answer

    play(scenario)


def test_attributes_class_does_not_change(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CLASSES, VALID)
        merge = {"content_type": "application/merge-patch+json"}
        for change in ({"driverName": "other.example.com"}, {"parameters": {"iops": "1"}}):
            status, answer = await api("PATCH", f"{CLASSES}/x", change, **merge)
            assert status == 422 and f"updates to {next(iter(change))} are forbidden." in answer["message"]

    play(scenario)

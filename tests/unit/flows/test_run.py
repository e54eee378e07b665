"""The flows from outside of a cluster, in a thread of their own."""

import shutil
from pathlib import Path

from podwire.flows.run import OutsideFlows, outside_reports


def test_flows_from_outside_say_why_they_ended(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    outside = OutsideFlows(folder, [], 0.01)
    outside.stop()
    assert outside.failure == "" and outside_reports(folder) == [] and len(list(folder.iterdir())) == 1
    outside = OutsideFlows(folder, [], 0.01)
    shutil.rmtree(folder)
    outside.stop()
    assert "No such file" in outside.failure

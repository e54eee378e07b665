"""Reads the record of a pod's sandbox, for the kubelet and for commands that look for namespaces of pods."""

from pathlib import Path

import msgspec

from podwire.embedded.kubelet.orders import RECORD_FORM, PodRecord
from podwire.runtime.stateform import check_form


def load_record(directory: Path) -> PodRecord | None:
    """The record in a pod's directory; None when the record is missing or damaged.

    Raises: ConfigError when it is of a later form.
    """
    file = directory / "pod.json"
    try:
        record = msgspec.json.decode(file.read_bytes(), type=PodRecord)
    except (OSError, msgspec.DecodeError):
        return None
    check_form(record.format, RECORD_FORM, str(file))
    return record

"""Secrets (``v1``)."""

import base64
import binascii

from podwire.model.meta import Fact, ObjectMeta

PASSWORD_TYPE = "kubernetes.io/basic-auth"
"""The type of Secrets with the keys ``username`` and ``password``, at least one of the two."""


class Secret(Fact, frozen=True):
    """A Secret; the values of ``data`` are base64."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: dict[str, str] = {}

    def text(self, key: str) -> str | None:
        """The value of a key as text, without line breaks at its end; None when the key is missing or not text."""
        if key not in self.data:
            return None
        try:
            return base64.b64decode(self.data[key], validate=True).decode().rstrip("\r\n")
        except (binascii.Error, UnicodeDecodeError):
            return None

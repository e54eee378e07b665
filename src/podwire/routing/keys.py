"""Key pairs that a node keeps for its routing backends: made once, each in a file that only root reads.

A backend names the key pairs that it needs (``backend.KeyHolder``); the router hands it their public halves in
``LocalNode.keys``. A private key stays in its file, whose path a plan may name.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from podwire.kernel import x25519
from podwire.kernel.wireguard_codec import base64_key
from podwire.routing.nodes import NodeKey
from podwire.runtime.files import write_atomically
from podwire.state.wireguard import key_bytes

_MODE = 0o400


class KeyStore:
    """The key pairs below a directory, one file ``BACKEND-NAME.key`` each, in base64."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, NodeKey] = {}

    def keep(self, backend: str, names: Iterable[str]) -> Mapping[str, NodeKey]:
        """The key pairs of a backend by name; missing ones are made, and those of other names are deleted.

        A file that holds no key is replaced.

        Raises: OSError when a file cannot be read or written.
        """
        files = {name: self._directory / f"{backend}-{name}.key" for name in names}
        for file in set(self._directory.glob(f"{backend}-*.key")) - set(files.values()):
            file.unlink(missing_ok=True)
            self._known.pop(file, None)
        return {name: self._pair(file) for name, file in files.items()}

    def _pair(self, file: Path) -> NodeKey:
        if file not in self._known or not file.exists():
            private = _read(file)
            if private is None:
                private = x25519.generate()
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(file, base64_key(private).encode() + b"\n", _MODE)
            self._known[file] = NodeKey(base64_key(x25519.public_key(private)), str(file))
        return self._known[file]


def _read(file: Path) -> bytes | None:
    try:
        return key_bytes(file.read_text(encoding="ascii").strip())
    except (FileNotFoundError, ValueError):
        return None

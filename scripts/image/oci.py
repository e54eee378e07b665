"""An OCI image layout as one archive: an index, a manifest for each processor, configurations, layers.

Sources: OCI image specification 1.1, image-layout.md, image-index.md, manifest.md, config.md.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from image import tree

_TYPE = "application/vnd.oci.image"


@dataclass
class Layout:
    """Blobs by digest, and the manifests of the index."""

    epoch: int
    labels: Mapping[str, str]
    level: int
    """How much gzip compresses, 1 to 9."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: list[dict[str, Any]] = field(default_factory=list)

    def add_image(self, architecture: str, layers: Sequence[tuple[str, tree.Tree]], settings: Mapping[str, Any]) -> str:
        """Adds the image of a processor, from layers with what made them; the digest of its manifest."""
        created = datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        archives = [tree.layer(files, self.epoch) for _, files in layers]
        entries = [self._blob("layer.v1.tar+gzip", tree.compress(archive, self.level)) for archive in archives]
        config = {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": {**settings, "Labels": dict(self.labels)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(archive) for archive in archives]},
            "history": [{"created": created, "created_by": text} for text, _ in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": self._blob("config.v1+json", _json(config)),
            "layers": entries,
        }
        entry = self._blob("manifest.v1+json", _json(manifest))
        self.manifests.append({**entry, "platform": {"architecture": architecture, "os": "linux"}})
        return str(entry["digest"])

    def archive(self, name: str) -> tuple[bytes, str]:
        """The archive of the layout, and the digest of its index. ``name`` is what container engines call the image."""
        index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": self.manifests}
        entry = self._blob("index.v1+json", _json(index))
        annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        top = {"schemaVersion": 2, "manifests": [{**entry, "annotations": annotations}]}
        files: tree.Tree = {
            "oci-layout": tree.Entry(0o644, b'{"imageLayoutVersion": "1.0.0"}'),
            "index.json": tree.Entry(0o644, _json(top)),
        }
        for digest, data in self.blobs.items():
            tree.put(files, f"blobs/{digest.replace(':', '/')}", tree.Entry(0o644, data))
        return tree.layer(files, self.epoch), str(entry["digest"])

    def _blob(self, kind: str, data: bytes) -> dict[str, Any]:
        digest = _digest(data)
        self.blobs[digest] = data
        return {"mediaType": f"{_TYPE}.{kind}", "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

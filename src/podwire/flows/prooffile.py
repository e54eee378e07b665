"""Where the proofs of runs are: a file for each run, named by its beginning, and ``proof.json``, that of the last."""

from datetime import UTC, datetime
from pathlib import Path

from podwire.flows.proof import LossProof, render_json
from podwire.runtime.files import write_atomically

LAST = "proof.json"


def write_proof(folder: Path, proof: LossProof) -> Path:
    """Writes the proof of a run, and makes it the last one; the file of the run. The same run replaces its own file.

    Raises: OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"proof-{datetime.fromtimestamp(proof.began, UTC):%Y%m%dT%H%M%SZ}.json"
    for path in (file, folder / LAST):
        write_atomically(path, render_json(proof).encode())
    return file


def is_proof(path: Path) -> bool:
    """Whether a file is the proof of a run."""
    return path.name.startswith("proof") and path.suffix == ".json"

"""The version of the podwire in a folder.

``importlib.metadata`` would read it too, and takes a command line as long to import as everything else of ``podwire
version``.
"""

from pathlib import Path


def version_of(root: Path) -> str:
    """The version by the wheel's metadata, or by the sources' project file."""
    for file, mark in [*((path, "Version: ") for path in root.glob("podwire-*.dist-info/METADATA")),
                       (root.parent / "pyproject.toml", 'version = "')]:  # fmt: skip
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(mark):
                return line.removeprefix(mark).strip('" ')
    return "0"

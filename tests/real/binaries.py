"""The programs that a real control plane needs, and where they are."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "e2e.test")
"""Programs from the folder of ``KUBERNETES_BIN``; etcd may also be the machine's."""
TOOLS = ("containerd", "ctr", "runc", "helm", "nsenter", "unshare", "ip", "gcc")
"""Programs of the machine."""


def find(folder: Path | None, path: str) -> tuple[Mapping[str, Path], Sequence[str]]:
    """The programs by name, and what is missing, as texts; ``path`` is the search path of the machine."""
    programs: dict[str, Path] = {}
    missing: list[str] = []
    for name in PROGRAMS:
        own = shutil.which(name, path=str(folder)) if folder is not None else None
        file = own or (shutil.which(name, path=path) if name == "etcd" else None)
        if file is None:
            missing.append(f"{name} in {folder or 'the folder of KUBERNETES_BIN, which is not set'}")
        else:
            programs[name] = Path(file)
    missing += [f"{name} on this machine" for name in TOOLS if shutil.which(name, path=path) is None]
    return programs, missing


def archives(folder: Path) -> list[Path]:
    """The images that the suite uses, as archives in the folder ``images``."""
    return sorted((folder / "images").glob("*.tar"))

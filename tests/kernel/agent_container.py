"""An agent in a container of runc that is not privileged: the mounts and capabilities of its DaemonSet."""

import json
import os
import subprocess
import sys
from pathlib import Path

CAPABILITIES = ("NET_ADMIN", "SYS_ADMIN", "NET_RAW", "NET_BROADCAST")
"""What the agent needs with all of its parts; docs/cni.md says what for."""
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""What container runtimes make read-only for containers that are not privileged."""


def bundle(directory: Path, place: Path, root: Path, argv: list[str], capabilities: tuple[str, ...]) -> Path:
    """Writes the bundle of a container in a node's network namespace; ``root`` is writable in it at its own path."""
    rootfs = directory / "rootfs"
    rootfs.mkdir(parents=True)
    system = sorted({f"/{Path(os.path.realpath(sys.executable)).parts[1]}", "/usr", "/bin", "/lib", "/lib64", "/sbin"})
    checkout = f"/{Path(__file__).resolve().parts[1]}"
    read_only = [*dict.fromkeys([*system, "/etc", checkout])]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "ro"]},
        {"destination": "/sys/fs/bpf", "type": "bind", "source": "/sys/fs/bpf", "options": ["rbind", "rw"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/run", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/host/proc/sys", "type": "bind", "source": "/proc/sys", "options": ["rbind", "rw"]},
        *(
            {"destination": name, "type": "bind", "source": name, "options": ["rbind", "ro"]}
            for name in read_only
            if Path(name).exists()
        ),
        {"destination": str(root), "type": "bind", "source": str(root), "options": ["rbind", "rw", "rslave"]},
    ]
    names = [f"CAP_{name}" for name in capabilities]
    spec = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": [f"PATH={os.environ['PATH']}", f"PYTHONPATH={os.pathsep.join(sys.path)}"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), names),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "mounts": mounts,
        "linux": {
            "namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "mount"},
                {"type": "network", "path": str(place)},
            ],
            "readonlyPaths": READ_ONLY,
            "rootfsPropagation": "rslave",
        },
    }
    (directory / "config.json").write_text(json.dumps(spec))
    return directory


def run(directory: Path, name: str, log: Path) -> "subprocess.Popen[bytes]":
    """Starts the container; the process ends with it."""
    with log.open("ab") as out:
        command = ["runc", "--root", str(directory / "state"), "run", "--bundle", str(directory), name]
        return subprocess.Popen(command, stdout=out, stderr=out)


def kill(directory: Path, name: str) -> None:
    """Kills the container with signal 9, and deletes it."""
    subprocess.run(["runc", "--root", str(directory / "state"), "delete", "--force", name], check=False)

"""Everything that a local cluster could leave on a machine, as text that tests compare."""

import json
import os
import re
import subprocess
from pathlib import Path

_SYSCTL_NOISE = ("fs.dentry", "fs.file-nr", "fs.inode", "kernel.random", "kernel.ns_last_pid", "fs.quota",
                 "kernel.pty", "net.netfilter.nf_conntrack_count", "kernel.perf_event_max_sample_rate", "fs.aio-nr",
                 "kernel.perf_cpu_time_max_percent", "net.ipv4.route.gc", "kernel.tainted")  # fmt: skip


def _output(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout


def _of_others(text: str, name: str) -> bool:
    """Whether a path or a process belongs to another cluster; other clusters start and stop during the test."""
    _, mark, rest = text.partition("podwire/")
    return bool(mark) and not rest.startswith((f"{name}/", f"{name} ")) and rest != name


def _devices_of_others(name: str) -> tuple[str, ...]:
    """Devices that connect this machine with the fabrics of other clusters; the alias of each names the cluster."""
    links = json.loads(_output("ip", "-j", "-d", "link") or "[]")
    marks = ((link["ifname"], link.get("ifalias", "").split()) for link in links)
    return tuple(device for device, arguments in marks if arguments[:1] and arguments[0].startswith("podwire/fabric/")
                 and arguments[0] != f"podwire/fabric/{name}")  # fmt: skip


def inventory(name: str) -> dict[str, str]:
    """Sorted lines for each kind of object that the cluster ``name`` could leave.

    Left out is what comes and goes with other clusters, the namespaces of tests/kernel, and mounts in the folders of
    other tests.
    """
    rest = _devices_of_others(name)
    sysctls = [line for line in _output("sysctl", "-a").splitlines() if not line.startswith(_SYSCTL_NOISE)]
    cgroups = [path for path, _, _ in os.walk("/sys/fs/cgroup") if "podwire" in path]
    listed = [line.split(None, 1) for line in _output("ps", "-eo", "cgroup:200,args").splitlines()]
    processes = [
        args
        for cgroup, args in listed
        if args.startswith(("podwire", "standin", "dns ")) and not _of_others(cgroup, name)
    ]
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if "podwire" in line]
    mounts = [path for path in mounted if "/pytest-of-" not in path]
    result = {
        "links": _output("ip", "-br", "link").splitlines(),
        "addresses": _output("ip", "-br", "address").splitlines(),
        "rules": _output("ip", "rule").splitlines() + _output("ip", "-6", "rule").splitlines(),
        "routes": _output("ip", "route", "show", "table", "all").splitlines(),
        "nftables": _output("nft", "list", "tables").splitlines(),
        "namespaces": [line for line in _output("ip", "netns", "list").splitlines() if not line.startswith("pwt-")],
        "mounts": [path for path in mounts if not _of_others(path, name)],
        "sysctls": sysctls,
        "cgroups": [path for path in cgroups if not _of_others(path, name)],
        "processes": processes,
        "files": [
            str(p)
            for folder in ("/run", "/var/lib", "/etc/cni", "/opt/cni", "/tmp")
            for p in Path(folder).glob("*podwire*")
        ],
    }
    devices = "|".join(map(re.escape, {*rest, *_devices_of_others(name)}))
    theirs = re.compile(rf"\b({devices})\b" if devices else "$.")
    return {
        kind: "\n".join(sorted(line for line in lines if not theirs.search(line))) for kind, lines in result.items()
    }

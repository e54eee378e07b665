"""What a local cluster could leave behind on a machine, as text to compare."""

import subprocess
from pathlib import Path

_SYSCTL_NOISE = ("fs.dentry", "fs.file-nr", "fs.inode", "kernel.random", "kernel.ns_last_pid", "fs.quota",
                 "kernel.pty", "net.netfilter.nf_conntrack_count", "kernel.perf_event_max_sample_rate", "fs.aio-nr",
                 "kernel.perf_cpu_time_max_percent", "net.ipv4.route.gc", "kernel.tainted")  # fmt: skip


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def inventory() -> dict[str, str]:
    """Every kind of thing, each as sorted lines."""
    sysctls = [line for line in _output("sysctl", "-a").splitlines() if not line.startswith(_SYSCTL_NOISE)]
    cgroups = [str(p) for p in Path("/sys/fs/cgroup").rglob("*") if p.is_dir() and "podwire" in str(p)]
    processes = [
        line for line in _output("ps", "-eo", "args").splitlines() if line.startswith(("podwire", "standin", "dns "))
    ]
    found = {
        "links": _output("ip", "-br", "link").splitlines(),
        "addresses": _output("ip", "-br", "address").splitlines(),
        "rules": _output("ip", "rule").splitlines() + _output("ip", "-6", "rule").splitlines(),
        "routes": _output("ip", "route", "show", "table", "all").splitlines(),
        "nftables": _output("nft", "list", "tables").splitlines(),
        "namespaces": _output("ip", "netns", "list").splitlines(),
        "mounts": [
            line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if "podwire" in line
        ],
        "sysctls": sysctls,
        "cgroups": cgroups,
        "processes": processes,
        "files": [
            str(p)
            for folder in ("/run", "/var/lib", "/etc/cni", "/opt/cni", "/tmp")
            for p in Path(folder).glob("*podwire*")
        ],
    }
    return {kind: "\n".join(sorted(lines)) for kind, lines in found.items()}

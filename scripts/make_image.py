"""Makes podwire's container image without a container engine, as an archive of an OCI image layout.

Usage: ``python scripts/make_image.py [--variant base|full|gateway] [--arch amd64 --arch arm64] [--name NAME]
[--packages FILE] [--level 1-9] [--output FILE]``. The image has two layers: Debian's packages
(``deploy/image/packages.txt``) without documentation, and podwire with the wheels that it needs. Beside the archive
``FILE.tar`` it writes ``FILE.packages.txt``, what the image is made of; with ``--packages`` and that file a later run
takes the same versions.

The same packages and sources give the same bytes: times are ``SOURCE_DATE_EPOCH`` (0 by default), owners are root,
files are sorted. The last line of the output is the digest of the index. What was fetched is kept in
``~/.cache/podwire/image``. Exit status 1 when something cannot be fetched or made, 2 for wrong arguments.
"""

import argparse
import os
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from image import debian, oci, tree, wheels
from image.tree import Entry

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "deploy/image/packages.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire/image"
NOT_NEEDED = {
    "base": ("cel-expr-python", "cryptography", "cffi", "pycparser"),
    "full": ("cel-expr-python",),
    "gateway": ("cel-expr-python", "dnspython"),
}
"""Wheels that only local clusters use, WireGuard, which only the variant ``full`` has, or cluster DNS."""
WHEELS = {"gateway": "gateway.txt"}
"""The requirements of a variant; of others, ``runtime.txt``."""
PACKAGES_OF = {"base": ("base", "node"), "full": ("base", "node", "full"), "gateway": ("base", "gateway")}
"""The marks in the list of packages of those that a variant has."""
USER = "65532:65532"
"""Controllers and DNS run as this user; the agent's DaemonSet asks for root."""
UNUSED = (
    *(f"usr/share/{name}" for name in (
        "man", "locale", "lintian", "bug", "doc-base", "info", "menu", "pixmaps", "applications", "debianutils",
        "base-files", "bash-completion", "python3",
    )),
    "etc/init.d", "etc/apt", "etc/update-motd.d", "usr/lib/systemd", "usr/lib/*/gconv", "usr/lib/*/audit",
    "usr/lib/*/perl5",
    *(f"usr/lib/python3.11/{name}" for name in (
        "lib2to3", "pydoc_data", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip", "distutils", "curses",
        "unittest", "test", "dbm",
    )),
    *(f"usr/lib/python3.11/lib-dynload/{name}" for name in (
        "_dbm.*", "_curses*", "readline.*", "nis.*", "_tkinter.*", "_test*", "_ctypes_test.*", "xx*", "_codecs_*",
    )),
)  # fmt: skip
"""Documentation but copyright files, scripts of other init systems, modules that podwire does not use."""
LINKS = {
    "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run",
    **{f"usr/sbin/{family}tables{verb}": f"{family}tables-nft{verb}"
       for family in ("ip", "ip6") for verb in ("", "-save", "-restore")},
}  # fmt: skip
"""Links that scripts of packages would make; of alternatives, Debian's choice."""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\npodwire:x:65532:65532:podwire:/:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\npodwire:x:65532:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n",
}
PROGRAM = "#!/usr/bin/python3.11 -I\nfrom podwire.cli.main import main\n\nmain()\n"


def chosen(variant: str, pinned: Path | None, architecture: str) -> list[str]:
    """The packages of a variant, as apt takes them.

    Raises: ValueError for a file of pinned packages that does not name one.
    """
    lines = [line.split() for line in PACKAGES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    names = [line[1] for line in lines if line[0] in PACKAGES_OF[variant]]
    if pinned is None:
        return names
    rows = [line.split() for line in pinned.read_text(encoding="utf-8").splitlines()]
    versions = {row[0]: row[1] for row in rows if len(row) == 4 and row[2] in (architecture, "all")}
    if missing := [name for name in names if name not in versions]:
        raise ValueError(f"{pinned}: expected a line with a version for {', '.join(missing)} ({architecture})")
    return [f"{name}={versions[name]}" for name in names]


def system(packages: Sequence[debian.Package]) -> tree.Tree:
    """The files of Debian's packages, with what their scripts would do, and the list of packages for scanners."""
    files: tree.Tree = {}
    for package in packages:
        files.update(package.files)
        tree.put(files, f"var/lib/dpkg/status.d/{package.name}", Entry(0o644, package.control.encode()))
    files = tree.without(files, UNUSED)
    for path in [path for path in files if path.startswith("usr/share/doc/") and path.count("/") > 3]:
        if not path.endswith("/copyright"):
            del files[path]
    for path, target in LINKS.items():
        is_missing = path.startswith("usr/sbin/") and f"usr/sbin/{target}" not in files
        if path not in files and not is_missing:
            tree.put(files, path, Entry(0o777, link=target))
    for path, text in FILES.items():
        tree.put(files, path, Entry(0o644, text.encode()))
    for folder in ("tmp", "run", "proc", "sys", "dev", "etc/podwire"):
        tree.put(files, folder, Entry(0o1777 if folder == "tmp" else 0o755))
    return files


def program(architecture: str, variant: str, own: Path) -> tuple[tree.Tree, list[str]]:
    """The files of podwire and its wheels, and the lines of the list of what they are."""
    requirements = ROOT / "requirements" / WHEELS.get(variant, "runtime.txt")
    fetched = wheels.fetch(requirements, NOT_NEEDED[variant], architecture, CACHE / variant)
    files = wheels.unpack([*fetched, own])
    tree.put(files, "usr/local/bin/podwire", Entry(0o755, PROGRAM.encode()))
    return files, [wheel.name for wheel in [*fetched, own]]


def with_bytecode(trees: dict[str, tuple[tree.Tree, tree.Tree]]) -> None:
    """Adds the bytecode of all sources to the trees of each processor, where the source is the same."""
    native = wheels.own_architecture()
    base, own = trees[native]
    bytecode = wheels.compiled(base, own, native)
    for architecture, layers in trees.items():
        for layer, reference in zip(layers, trees[native], strict=True):
            for path, entry in bytecode.items():
                folder, _, name = path.rpartition("/__pycache__/")
                source = f"{folder}/{name.partition('.')[0]}.py"
                if source in layer and layer[source] == reference.get(source):
                    tree.put(layer, path, entry)
        print(
            f"{architecture}: {sum(len(e.data or b'') for layer in layers for e in layer.values()) >> 20} MiB of files"
        )


def make(arguments: argparse.Namespace, version: str, epoch: int) -> None:
    """Writes the archive and the list of packages.

    Raises: PackageError, WheelError, ValueError.
    """
    listed: dict[str, list[str]] = {}
    trees: dict[str, tuple[tree.Tree, tree.Tree]] = {}
    with tempfile.TemporaryDirectory() as folder:
        own = wheels.build(ROOT, Path(folder), epoch)
        for architecture in sorted({*arguments.arch, wheels.own_architecture()}):
            names = chosen(arguments.variant, arguments.packages, architecture)
            packages = debian.fetch(names, architecture, CACHE)
            files, pythons = program(architecture, arguments.variant, own)
            listed[architecture] = [*map(str, packages), *(f"{name} wheel" for name in pythons)]
            trees[architecture] = system(packages), files
    with_bytecode(trees)
    title = "podwire-gateway" if arguments.variant == "gateway" else "podwire"
    labels = {
        "org.opencontainers.image.title": title,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    layout = oci.Layout(epoch, labels, arguments.level)
    settings = {"User": USER, "Entrypoint": ["/usr/local/bin/podwire"], "WorkingDir": "/", "Env": [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
    ]}  # fmt: skip
    for architecture in sorted(arguments.arch):
        base, files = trees[architecture]
        tree.put(files, "usr/local/share/podwire/packages.txt", Entry(0o644, _text(listed[architecture]).encode()))
        digest = layout.add_image(architecture, [("Debian packages", base), ("podwire", files)], settings)
        print(f"{architecture}: {digest}")
    data, digest = layout.archive(arguments.name or f"localhost/{title}:{version}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(data)
    lines = sorted({line for architecture in arguments.arch for line in listed[architecture]})
    arguments.output.with_suffix(".packages.txt").write_text(_text(lines))
    print(f"{arguments.output}: {len(data) / 1e6:.1f} MB")
    print(digest)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def main(words: Sequence[str]) -> int:
    """Makes the image; the exit status."""
    parser = argparse.ArgumentParser(description="Makes podwire's container image without a container engine.")
    what = "full: with BIRD and WireGuard; gateway: with Envoy, for the gateway alone"
    parser.add_argument("--variant", choices=tuple(PACKAGES_OF), default="full", help=what)
    parser.add_argument("--arch", choices=("amd64", "arm64"), action="append", help="processors; both by default")
    parser.add_argument("--name", default="", help="name of the image in the archive; localhost/NAME:VERSION")
    parser.add_argument("--packages", type=Path, help="a list of packages of an earlier run, whose versions to take")
    parser.add_argument("--level", type=int, choices=range(1, 10), default=6, metavar="1-9", help="of gzip; 6")
    parser.add_argument("--output", type=Path, help="dist/podwire.tar, of the variant gateway dist/podwire-gateway.tar")
    arguments = parser.parse_args(words)
    name = "podwire-gateway.tar" if arguments.variant == "gateway" else "podwire.tar"
    arguments.output = arguments.output or ROOT / "dist" / name
    arguments.arch = arguments.arch or ["amd64", "arm64"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        make(arguments, version, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except (debian.PackageError, wheels.WheelError, OSError, ValueError) as failure:
        print(f"make_image.py: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

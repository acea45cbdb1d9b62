"""
Runs a service as a child of this package: ``python -m paceline.cli.child MODULE ARGUMENTS...``.

Standard input is a pipe from the parent. When it ends, the parent is gone, however it died, and
the service is told to stop; so no service outlives ``paceline up``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

DRAIN_SECONDS: Final = 10.0
"""Time to stop by itself once the parent is gone: nobody is left to read its answers."""


def main() -> None:
    """Run the module that the first argument names, as ``python -m`` would."""
    module, *arguments = sys.argv[1:]
    threading.Thread(target=_stop_with_parent, name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _stop_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DRAIN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()

"""
A service process without a service: it serves health, and does what its flags say.

Run as a module, by the name ``tests.doubles.fake_service``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from paceline.serving import Server, termination_signal


async def serve(address: str, pid_file: str) -> None:
    """Serve health until a signal comes."""
    server = Server([])
    server.listen(address)
    async with termination_signal() as received:
        await server.start()
        await server.set_ready(True)
        with open(pid_file, "w", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 a small file
            file.write(str(os.getpid()))
        await received.wait()
    await server.stop(0)


def main() -> int:
    """Serve, or fail as told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--log-format")
    parser.add_argument("--pid-file", default=os.devnull)
    parser.add_argument("--says", default="")
    parser.add_argument("--exits", type=int)
    options = parser.parse_args()
    sys.stderr.write(options.says + "\n")
    if options.exits is not None:
        return int(options.exits)
    asyncio.run(serve(options.listen, options.pid_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())

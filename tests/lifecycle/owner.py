"""Stands for pytest in kill tests: starts a server through our code, says which processes there are, and waits.

It has no clean-up of its own, which is the hardest case: whatever ends it, nothing may be left.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pytest_llmbench.engine import LaunchSpec
from pytest_llmbench.engine.llama_server import start_llama_server
from pytest_llmbench.engine.reaper import REAPER


async def main() -> None:
    order = json.loads(sys.argv[1])
    spec = LaunchSpec(order["binary"], tuple(order["args"]), order["model"], wrapper=tuple(order["wrapper"]))
    server = await start_llama_server(spec, start_number=1, log_path=Path(order["log"]))
    print(json.dumps({"server": server.pid, "leader": server.process.pid, "reaper": REAPER.pid}), flush=True)
    await asyncio.sleep(600)


asyncio.run(main())

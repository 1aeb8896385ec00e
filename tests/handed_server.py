"""An MCP server of the standard library alone, with one tool. It ignores SIGTERM and the end of its input.

It writes to the file of its first argument how it was started, a line of JSON; the second one is a word for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object", "properties": {}}}


def main(file: str, word: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    seen = {"pid": os.getpid(), "parent": os.getppid(), "cwd": os.getcwd(), "key": os.environ.get("KEY"), "word": word}
    with open(file, "a") as noted:
        noted.write(json.dumps(seen) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        result: dict[str, object] = {}
        if asked["method"] == "initialize":
            result = {
                "protocolVersion": asked["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "handed", "version": "1"},
            }
        elif asked["method"] == "tools/list":
            result = {"tools": [TOOL]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A supervisor with a session at each moment of an agent that is a model, in a process that a test kills.

    python -m tests.model_child STATE_DIR OPTIONS MARK FOLDER WORD...

It prints a line when all moments have come.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from actors.decoding import decoder
from supervisor import Agent
from tests.kit import Kit, say
from tests.model_kit import reached, tools


def main() -> None:
    state_dir, options, mark, folder, *words = sys.argv[1:]
    kit = Kit(Path(state_dir))
    supervisor = kit.start(Agent(**decoder(dict[str, Any])(options)), tools=tools(mark))
    runs = [say(supervisor.session(word), f"[do {word} {word}9]") for word in words]
    for word, run_id in zip(words, runs, strict=True):
        reached(supervisor.session(word), run_id, Path(folder), f"{word}9")
    print("reached", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

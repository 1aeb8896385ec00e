"""A supervisor with one session, in a process that a test kills: it says messages, and tells when a moment is reached.

    python -m tests.program_child STATE_DIR OPTIONS MOMENT MESSAGE...

All messages but the last are answered before that. It prints the run of the last one at the moment.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from actors.decoding import decoder
from supervisor import Agent
from tests.kit import Kit, say, until
from tests.program_kit import MOMENTS, done


def main() -> None:
    state_dir, options, moment, *before, last = sys.argv[1:]
    session = Kit(Path(state_dir)).start(Agent(**decoder(dict[str, Any])(options))).session("s1")
    for message in before:
        done(session, message)
    run_id = say(session, last)
    until(lambda: MOMENTS[moment](session), moment)
    print(run_id, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

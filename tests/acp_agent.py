"""A stand-in for a program that speaks ACP, with the faults that such programs have. The standard library alone.

It keeps its sessions in the folder `sessions` of its working directory, and there in `log`, a line for each request,
what it was asked, and `end` before it answers a prompt. What it does for a prompt is said by the last line of that,
in words:

    say TEXT      says it
    after SECONDS says something so long after it was asked
    work FAULTS   a text, a tool, a text, a permission, and a text without an end; each step is told before it begins
    run FILES     a tool that runs these by the shell, all at once, and has no end
    ask           a permission for a tool; then a text that says what became of it
    rush          a tool without an end, and a permission; it waits for neither
    crash         says something, and dies with a last word
    quiet         says nothing any more
    count         how often it was prompted, and its process

The faults, each a word: `deaf` ignores a cancel; `end_turn` answers a cancelled prompt as if it had come to its end;
`mute` stops, but never answers the prompt; `chatter` goes on talking after it; `slow` takes its time. With `hold` the
tool has no end, with `free` it asks for no permission. Whatever they are, its tools start children that survive it.
It starts the MCP servers that come with a session, as its children. With the argument `--no-http` it can
use none by HTTP. With `--forget` it knows no session of an earlier process, and with `--login` it wants one. The file
`sessions/busy` makes it refuse once to load a session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

Json = dict[str, Any]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
PIECE_S = 0.01
FOLDER = Path("sessions")


class Cancelled(Exception):
    """The prompt was cancelled."""


class Agent:
    """The agent. Requests are read on the main thread, a prompt is answered on one of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cancelled = threading.Event()
        self.faults: set[str] = set()
        self.answers: dict[int, Json] = {}
        self.answered = threading.Condition()
        self.numbers = 0
        self.session = ""
        self.known: set[str] = set()
        self.prompts = 0

    def write(self, **message: Any) -> None:
        with self.lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                # Before it acts on it: when it has, it may be ended.
                self.log("answer", message.get("result") or message.get("error"))
                with self.answered:
                    self.answers[message["id"]] = message
                    self.answered.notify_all()
                continue
            params = message.get("params") or {}
            self.log(message["method"], params)
            if "id" in message:
                self.handle(message["method"], message["id"], params)
            elif message["method"] == "session/cancel" and "deaf" not in self.faults:
                self.cancelled.set()

    def log(self, what: str, params: Any) -> None:
        FOLDER.mkdir(exist_ok=True)
        with (FOLDER / "log").open("a") as file:
            file.write(json.dumps([os.getpid(), what, params]) + "\n")

    def handle(self, method: str, number: int, params: Json) -> None:
        if method == "initialize":
            able: Json = {"loadSession": True, "promptCapabilities": {}}
            able["mcpCapabilities"] = {} if "--no-http" in sys.argv else {"http": True}
            self.write(id=number, result={"protocolVersion": 1, "agentCapabilities": able, "authMethods": []})
        elif method == "session/new" and "--login" in sys.argv:
            self.write(id=number, error={"code": -32000, "message": "Authentication required"})
        elif method == "session/new":
            self.session = uuid.uuid4().hex
            (FOLDER / self.session).touch()
            start_servers(params)
            self.write(id=number, result={"sessionId": self.session})
        elif method == "session/load":
            self.session = params["sessionId"]
            if "--forget" in sys.argv or not (FOLDER / self.session).exists():
                self.write(id=number, error={"code": -32002, "message": f"no session {self.session}"})
                return
            if (FOLDER / "busy").exists():
                (FOLDER / "busy").unlink()
                self.write(
                    id=number, error={"code": -32603, "message": "Internal error", "data": {"details": "locked"}}
                )
                return
            start_servers(params)
            self.say("what was said in an earlier turn")
            self.write(id=number, result={})
        elif method == "session/prompt":
            threading.Thread(target=self.prompt, args=(number, params["prompt"][0]["text"]), daemon=True).start()
        else:
            self.write(id=number, error={"code": -32601, "message": "no such method"})

    # ── What it says ──

    def update(self, what: str, **update: Any) -> None:
        params = {"sessionId": self.session, "update": {"sessionUpdate": what, **update}}
        self.write(method="session/update", params=params)

    def say(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def pause(self) -> None:
        time.sleep(PIECE_S)
        if self.cancelled.is_set():
            raise Cancelled

    def prompt(self, number: int, text: str) -> None:
        self.cancelled.clear()
        self.prompts += 1
        word, _, rest = text.rsplit("\n", 1)[-1].partition(" ")
        self.faults = set(rest.split()) if word == "work" else set()
        reason = "end_turn"
        try:
            getattr(self, f"do_{word}")(rest)
        except Cancelled:
            if "mute" in self.faults:
                return
            for _ in range(100 if "chatter" in self.faults else 0):
                self.say("after the cancel")
            reason = "end_turn" if "end_turn" in self.faults else "cancelled"
            if "slow" in self.faults:
                time.sleep(0.05)
        self.log("end", reason)
        self.write(id=number, result={"stopReason": reason})
        if "chatter" in self.faults:
            self.say("after the end")

    def do_say(self, rest: str) -> None:
        self.say(f"said: {rest}")
        if rest == "late":
            threading.Timer(PIECE_S, self.say_late).start()

    def do_after(self, rest: str) -> None:
        time.sleep(float(rest))
        self.say("said")

    def say_late(self) -> None:
        self.say("after the end")
        self.log("late", None)

    def do_count(self, _rest: str) -> None:
        self.say(f"{self.prompts} {os.getpid()}")

    def do_crash(self, _rest: str) -> None:
        self.say("about to crash")
        sys.stderr.write("out of tokens\n")
        sys.stderr.flush()
        os._exit(7)

    def do_quiet(self, _rest: str) -> None:
        self.say("quiet")
        while True:
            self.pause()

    def do_work(self, _rest: str) -> None:
        self.say("<1>")
        for _ in range(5):
            self.say(".")
            self.pause()
        call = {"toolCallId": "t1", "title": "make test", "kind": "execute", "rawInput": {"command": "make test"}}
        self.update("tool_call", status="pending", **call)
        self.update("tool_call_update", toolCallId="t1", status="in_progress")
        start_children()
        self.say("<2>")
        for _ in range(1_000_000 if "hold" in self.faults else 5):
            self.pause()
        content = [{"type": "content", "content": {"type": "text", "text": "tested"}}]
        self.update("tool_call_update", toolCallId="t1", status="completed", content=content)
        self.say("<3>")
        for _ in range(5):
            self.pause()
        self.say("<4>")
        if "free" not in self.faults:
            self.permit("t2")
        while True:
            self.say("more ")
            self.pause()

    def do_run(self, rest: str) -> None:
        self.update("tool_call", toolCallId="t1", title=rest, kind="execute", status="in_progress")
        for file in rest.split():
            subprocess.Popen(["sh", file], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while True:
            self.pause()

    def do_ask(self, _rest: str) -> None:
        outcome = self.permit("t1")
        if outcome.get("optionId") == "yes":
            self.update("tool_call_update", toolCallId="t1", status="in_progress")
            content = [{"type": "content", "content": {"type": "text", "text": "deployed"}}]
            self.update("tool_call_update", toolCallId="t1", status="completed", content=content)
        self.say(f"it was {outcome}")

    def do_rush(self, _rest: str) -> None:
        self.update("tool_call", toolCallId="t1", title="goes on", kind="execute", status="in_progress")
        self.ask("t2")

    def permit(self, key: str) -> Json:
        self.ask(key)
        with self.answered:
            while self.numbers not in self.answers:
                # It is answered also when the turn is cancelled.
                self.answered.wait()
        outcome: Json = self.answers[self.numbers]["result"]["outcome"]
        if outcome["outcome"] == "cancelled":
            raise Cancelled
        return outcome

    def ask(self, key: str) -> None:
        call = {"toolCallId": key, "title": "make deploy", "kind": "execute", "rawInput": {"command": "make deploy"}}
        self.update("tool_call", status="pending", **call)
        options = [
            {"optionId": "ever", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        self.numbers += 1
        params = {"sessionId": self.session, "toolCall": {"toolCallId": key}, "options": options}
        self.write(id=self.numbers, method="session/request_permission", params=params)


def start_servers(params: Json) -> None:
    for server in params["mcpServers"]:
        if "command" in server:
            env = {**os.environ, **{one["name"]: one["value"] for one in server["env"]}}
            subprocess.Popen(
                [server["command"], *server["args"]], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )


def start_children() -> None:
    """Start a child that ignores SIGTERM, and one in a session of its own."""
    quiet: Json = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], **quiet)
    subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet)


if __name__ == "__main__":
    Agent().serve()

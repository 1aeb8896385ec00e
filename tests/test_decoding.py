"""Types that several threads use for the first time at once. What goes wrong ends the process, so each has its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from actors.decoding import convert, decoder

ROOT = Path(__file__).parent.parent

# Making an Enum's type known runs Python code, so that a thread can be replaced by another in the middle.
PROGRAM = textwrap.dedent("""
    import enum, json, sys, threading
    import msgspec
    from actors.decoding import convert, decoder, learn, schema

    def use(kind, given):
        match sys.argv[1]:
            case "decoder":
                return decoder(kind)(json.dumps(given))
            case "convert":
                return convert(given, kind)
            case "learn":
                learn(kind)
                return msgspec.convert(given, kind)
            case "schema":
                described = schema(kind)
                assert described["$defs"]["Inner"]["properties"]["f0"]
                return msgspec.convert(given, kind)
            case "msgspec":
                return msgspec.json.decode(json.dumps(given), type=kind)

    sys.setswitchinterval(1e-6)
    for _ in range(int(sys.argv[2])):
        words = [enum.Enum(f"Word{i}", {f"a{j}": f"a{j}" for j in range(5)}, type=str) for i in range(4)]
        inner = msgspec.defstruct("Inner", [(f"f{i}", word | None, None) for i, word in enumerate(words)])
        outer = msgspec.defstruct("Outer", [("one", inner), ("all", list[inner])])
        given = {"one": {"f0": "a1", "f3": "a2"}, "all": [{"f1": "a0"}]}
        expected = outer(inner(words[0].a1, f3=words[3].a2), [inner(f1=words[1].a0)])
        start, ended = threading.Barrier(4), []

        def run():
            start.wait()
            ended.append(use(outer, given))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ended == [expected] * 4, ended
    print("whole")
""")


def ends(use: str, rounds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, use, str(rounds)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("use", ["decoder", "convert", "learn", "schema"])
def test_threads_that_come_to_a_type_at_once_all_decode_it(use: str) -> None:
    ended = ends(use, 200)
    assert (ended.returncode, ended.stdout) == (0, "whole\n"), ended.stderr


def test_what_does_not_fit_is_refused_and_the_type_stays_usable() -> None:
    with pytest.raises(msgspec.ValidationError):
        convert("a", int)
    with pytest.raises(msgspec.DecodeError):
        decoder(int)("a")
    assert (convert(1, int), decoder(int)(b"2")) == (1, 2)

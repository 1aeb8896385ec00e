"""What a terminal gets of what runs print: text and colours, whatever comes and in whatever pieces."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tty

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.console.tty.screen import Screen
from supervisor.console.tty.terminal import COLOURS_MAX, RESET, SEQUENCE_MAX, TerminalFilter, without_colours

ESC = "\x1b"
# What makes sequences of all kinds, whole and broken, likely.
PIECES = st.sampled_from(
    [
        *(ESC, "[", "]", "P", "X", "^", "_", "\\", "m", "H", "J", "c", "(", "B", "0", "1", ";", "?", " ", "!"),
        *(
            "\x07",
            "\r",
            "\n",
            "\t",
            "\x00",
            "\x7f",
            "\x9b",
            "\x9d",
            "\u202e",
            "\u2066",
            "\u2028",
            "a",
            "é",
            "🚀",
            "\ud800",
        ),
        *(f"{ESC}[31m", f"{ESC}[2J", f"{ESC}]0;t\x07", f"{ESC}[38;5;", "x" * (SEQUENCE_MAX + 2)),
    ]
)
OUTPUT = st.lists(PIECES | st.text(max_size=3), max_size=20).map("".join)
SAFE = re.compile(
    r"(?:\x1b\[[0-9;:]*m|[\n\t]|[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff])*"
)


def looks(shown: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each character as a terminal shows it: with the colours that are on."""
    on: tuple[str, ...] = ()
    seen = []
    for token in re.findall(r"\x1b\[[0-9;:]*m|(?s:.)", shown):
        if not token.startswith(ESC):
            seen.append((token, on))
        elif re.fullmatch(r"\x1b\[0*(;.*)?m", token):
            on = (token,) if token.strip(f"{ESC}[0m") else ()
        else:
            on = (*on, token)[-COLOURS_MAX:]
    return seen


def filtered(*pieces: str) -> str:
    one = TerminalFilter()
    return "".join(one.feed(piece) for piece in pieces) + one.end()


@given(OUTPUT)
def test_nothing_but_text_newlines_tabs_and_colours_survives(output: str) -> None:
    assert SAFE.fullmatch(filtered(output))


@given(OUTPUT, st.data())
@example(f"{ESC}]" + "x" * (SEQUENCE_MAX + 2), None)
@example(f"{ESC}[31ma{ESC}[0mb{ESC}[1;4mc{ESC}[md{ESC}[00;7me", None)
def test_where_the_pieces_end_changes_nothing(output: str, data: st.DataObject | None) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8))) if data else range(len(output))
    ends = [0, *cuts, len(output)]
    pieces = [output[start:end] for start, end in itertools.pairwise(ends)]
    assert looks(filtered(*pieces)) == looks(filtered(output))


@given(st.lists(OUTPUT, max_size=4))
def test_behind_each_piece_colours_are_off(pieces: list[str]) -> None:
    one = TerminalFilter()
    for shown in [*map(one.feed, pieces), one.end()]:
        assert looks(f"{shown}|")[-1] == ("|", ())


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_text_without_controls_is_shown_as_it_is(output: str) -> None:
    assert filtered(output) == output


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (f"{ESC}[1;31mred{ESC}[0m", f"{ESC}[1;31mred{ESC}[0m"),
        (f"{ESC}[38:2::1:2:3mx", f"{ESC}[38:2::1:2:3mx{RESET}"),
        ("a\tb\nc\r\nd", "a\tb\nc\nd"),
        # The states of a progress bar, each on a line of its own.
        ("10%\r20%\r", "10%\n20%\n"),
        (f"up{ESC}[1A{ESC}[2K{ESC}[?25l{ESC}[10;10Hdown", "updown"),
        # A parameter that is private makes another sequence of the same letter.
        (f"{ESC}[>4;2mx{ESC}[?1mx", "xx"),
        (f"{ESC}]0;title\x07{ESC}]52;c;aGk={ESC}\\{ESC}]8;;http://x\x07link{ESC}]8;;\x07", "link"),
        (f"{ESC}P1$qm{ESC}\\{ESC}_apc{ESC}\\{ESC}^pm{ESC}\\{ESC}Xsos{ESC}\\x", "x"),
        (f"{ESC}c{ESC}7{ESC}8{ESC}(B{ESC}#8{ESC}Dx", "x"),
        ("\x9b2J\x9d0;t\x9c", "\\u009b2J\\u009d0;t\\u009c"),
        ("a\x08\x0b\x0c\x07\x7f", "a\\x08\\x0b\\x0c\\x07\\u007f"),
        ("rm \u202efdp.txt\u2066", "rm \\u202efdp.txt\\u2066"),
        # What is never ended hides nothing.
        (f"{ESC}]0;never ended\nand so on", "\\x1b]0;never ended\nand so on"),
        (f"{ESC}]{'x' * SEQUENCE_MAX}y\x07", f"\\x1b]{'x' * SEQUENCE_MAX}y\\x07"),
        (f"{ESC}[3", "\\x1b[3"),
        (f"{ESC}{ESC}[31mx", f"\\x1b{ESC}[31mx{RESET}"),
        (f"{ESC}[\n31m", "\\x1b[\n31m"),
    ],
)
def test_a_terminal_gets_this_of_it(output: str, shown: str) -> None:
    assert filtered(output) == shown


def test_what_may_become_a_sequence_is_held_back_and_nothing_else_is() -> None:
    one = TerminalFilter()
    assert one.feed(f"text{ESC}[3") == "text"
    assert one.feed("1mred") == f"{ESC}[31mred{RESET}"
    assert one.feed("more") == f"{ESC}[31mmore{RESET}"
    one.end()
    assert one.feed("of another") == "of another"


def test_colours_without_an_end_are_kept_up_to_a_bound() -> None:
    one = TerminalFilter()
    for number in range(10 * COLOURS_MAX):
        one.feed(f"{ESC}[38;5;{number}m")
    assert one.feed("x").count(ESC) == COLOURS_MAX + 1


def test_the_text_of_what_was_shown_is_had_without_its_colours() -> None:
    assert without_colours(filtered(f"{ESC}[31mred\n")) == "red\n"


def test_a_remark_of_the_console_is_one_line_whatever_is_in_it() -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    screen = Screen(theirs, theirs)
    screen.output(f"{ESC}[8mconcealed")
    screen.remark(f"calls odd\n> forged{ESC}[2J(\u202e)", "to do: x\ry")
    screen.output("more\n")
    screen.end_message()
    screen.output("of another\n", fresh_line=True)
    os.close(theirs)
    shown = ""
    # The last user of the terminal has gone: after what it has printed, reading fails.
    with contextlib.suppress(OSError):
        while data := os.read(ours, 4096):
            shown += data.decode()
    os.close(ours)
    seen = looks(shown)
    text = "".join(char for char, _ in seen)
    assert text == "concealed\ncalls odd\\n> forged\\x1b[2J(\\u202e)\nto do: x\\ry\nmore\nof another\n"
    # What an agent conceals is its own output, and nothing of the console's or of another's.
    concealed = {char for char, on in seen if any("8m" in one for one in on)}
    assert concealed == {*"concealedmore\n"}
    assert "".join(char for char, on in seen if not any("8m" in one for one in on)).endswith("of another\n")

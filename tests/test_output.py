"""The bookkeeping of output: decoding, coalescing, the cap, the tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.containment.output import Output, Piece


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if not piece.marker)


def test_a_character_that_two_reads_cut_in_half_stays_whole() -> None:
    output = Output(1000, 1000)
    for byte in "a€😀é".encode():
        output.feed("stdout", bytes([byte]))
    output.end("stdout")
    assert text_of(output.take()) == "a€😀é"
    assert not output.lossy


def test_half_a_character_at_the_end_is_replaced_and_said_to_be_lossy() -> None:
    output = Output(1000, 1000)
    output.feed("stdout", b"\xf0")
    assert output.take() == []
    output.end("stdout")
    assert output.take() == [Piece("stdout", "\ufffd")]
    assert output.lossy
    assert output.total_bytes == 1


def test_a_replacement_character_that_the_command_wrote_itself_is_not_lossy() -> None:
    output = Output(1000, 1000)
    output.feed("stdout", "\ufffd".encode())
    assert text_of(output.take()) == "\ufffd"
    assert not output.lossy


def test_streams_keep_their_order_and_neighbours_are_joined() -> None:
    output = Output(1000, 1000)
    output.feed("stdout", b"a")
    output.feed("stdout", b"b")
    output.feed("stderr", b"c")
    output.feed("stdout", b"d")
    assert output.take() == [Piece("stdout", "ab"), Piece("stderr", "c"), Piece("stdout", "d")]
    assert output.take() == []


def test_at_the_limit_comes_one_marker_and_then_only_the_tail_and_the_count_continue() -> None:
    output = Output(10, 5)
    output.feed("stdout", b"0123456789")
    assert output.take() == [Piece("stdout", "0123456789")]
    output.feed("stderr", b"abc")
    (marker,) = output.take()
    assert marker.marker
    assert marker.stream == "stderr"
    assert "10 bytes" in marker.text
    output.feed("stdout", b"the very end")
    assert output.take() == []
    assert output.total_bytes == 10 + 3 + 12
    assert output.tail == "y end"


def test_the_cap_and_the_tail_are_cut_at_a_character() -> None:
    output = Output(4, 4)
    output.feed("stdout", "€€€".encode())
    text, marker = output.take()
    assert text == Piece("stdout", "€")
    assert marker.marker
    assert output.tail == "€"


def test_what_comes_after_the_close_is_counted_and_nothing_else() -> None:
    output = Output(1000, 1000)
    output.feed("stdout", b"before")
    output.close()
    output.feed("stdout", b"after")
    output.end("stdout")
    assert text_of(output.take()) == "before"
    assert output.tail == "before"
    assert output.total_bytes == 11


def test_a_flood_costs_bounded_memory() -> None:
    output = Output(100_000, 1000)
    held = 0
    for _ in range(200):
        output.feed("stdout", b"x" * 65536)
        held = max(held, len(output._tail) + sum(len(piece.text) for piece in output._pieces))
    assert output.total_bytes == 200 * 65536
    assert held < 100_000 + 2 * 1000 + 200
    assert output.tail == "x" * 1000


@given(
    st.lists(st.binary(max_size=9) | st.text("aé€😀", max_size=4).map(str.encode), max_size=60),
    st.integers(0, 20),
)
def test_past_the_limit_the_tail_of_what_is_no_text_is_as_if_all_had_been_decoded(
    reads: list[bytes], tail_max: int
) -> None:
    output = Output(0, tail_max)
    whole = b"\xff"
    output.feed("stdout", whole)
    for number, data in enumerate(reads):
        output.feed("stdout", data)
        whole += data
        if number % 7 == 6:
            # Whoever looks at it meanwhile changes nothing.
            assert len(output.tail.encode()) <= tail_max
    output.close()
    expected = whole.decode("utf-8", "replace").encode()
    assert output.tail == (expected[-tail_max:].decode("utf-8", "ignore") if tail_max else "")
    assert output.total_bytes == len(whole)


def test_past_the_limit_both_streams_are_in_the_tail_in_their_order() -> None:
    output = Output(0, 100)
    for _ in range(50):
        output.feed("stdout", b"\xff" + b"o" * 30)
        output.feed("stderr", b"\xff" + b"e" * 30)
    output.close()
    out, err = "\ufffd" + "o" * 30, "\ufffd" + "e" * 30
    assert output.tail == ((out + err) * 50).encode()[-100:].decode()


def test_past_the_limit_halves_of_characters_with_a_gap_between_them_make_none() -> None:
    output = Output(0, 10)
    output.feed("stderr", b"\xff")
    output.feed("stdout", b"\xff\xe2\x82")
    output.feed("stdout", b"x" * 30)
    for _ in range(2):
        output.feed("stderr", b"y" * 30)
    output.feed("stdout", b"\xac")
    assert output.tail == "yyyyyyy\ufffd"


def test_past_the_limit_what_is_no_text_is_still_found() -> None:
    output = Output(0, 10)
    for data in (b"x" * 100, b"\xff", *[b"x" * 100] * 10):
        output.feed("stdout", data)
    assert output.lossy


def test_l14_past_the_limit_a_flood_of_what_is_no_text_costs_bounded_memory() -> None:
    output = Output(1000, 1000)
    for data in (b"\xff" * 65536, b"\xff"):
        for _ in range(2000):
            output.feed("stdout", data)
            assert sum(len(one) for _, one in output._skimmed) <= 2000 + 2 * 65536
            assert len(output._skimmed) <= 100
    assert output.tail == "\ufffd" * 333


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=12)), max_size=30))
def test_any_bytes_in_any_pieces_come_out_as_python_itself_would_decode_them(reads: list[tuple[str, bytes]]) -> None:
    output = Output(1_000_000, 1_000_000)
    pieces: list[Piece] = []
    for stream, data in reads:
        output.feed(stream, data)
        pieces += output.take()
    output.close()
    pieces += output.take()
    for stream in ("stdout", "stderr"):
        raw = b"".join(data for other, data in reads if other == stream)
        got = "".join(piece.text for piece in pieces if piece.stream == stream)
        assert got == raw.decode("utf-8", "replace")
    assert output.total_bytes == sum(len(data) for _, data in reads)

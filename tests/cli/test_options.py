"""Tables for people, on a terminal and in a file."""

from __future__ import annotations

import pytest
from rich.console import Console

from strandline.cli import options
from strandline.cli.options import print_table

ROWS = [("1", "表", "create"), ("", "é", "a\nb"), ("20", "", " ".join(["long"] * 200))]


def test_a_table_in_a_file_has_a_line_for_each_line_of_a_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("n", "name", "what"), ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "n   name  what",
        "1   表    create",
        "    é     a",
        "          b",
        f"20        {ROWS[2][2]}",
    ]
    print_table((), [("n", ""), ("", "")])
    assert capsys.readouterr().out == "n\n\n"
    print_table(("n",), [])
    assert capsys.readouterr().out == "n\n"


def test_only_a_short_table_is_wrapped_to_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(options, "WRAPPED_ROWS", len(ROWS))
    print_table(("n", "name", "what"), ROWS)
    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 80
    print_table(("n", "name", "what"), [*ROWS, ("21", "", "")])
    assert ROWS[2][2] in capsys.readouterr().out


def test_a_word_that_is_wider_than_the_terminal_is_broken_and_not_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "40")
    path = "/lake/warehouse/shop.db/orders/" + "x" * 100
    print_table((), [(path, "missing")])
    out = capsys.readouterr().out
    assert "".join(line.removesuffix("missing").strip() for line in out.splitlines()) == path

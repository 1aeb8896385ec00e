"""What a host has loaded: when the file of its agent's code was changed."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

from tests.host_kit import RUNTIME, Daemon


def test_hello_says_when_the_agents_code_was_changed_before_it_was_loaded(tmp_path: Path, python: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    code = """
        import os
        os.utime(__file__, (2_000.0, 2_000.0))  # somebody writes to it meanwhile
        async def agent(turn): pass
    """
    (package / "mine.py").write_text(textwrap.dedent(code))
    os.utime(package / "mine.py", (1_000.5, 1_000.5))
    with Daemon([python, str(RUNTIME), "package.mine:agent"], tmp_path) as host:
        assert host.hello()["code_changed_at"] == 1_000.5


def test_hello_says_nothing_of_code_that_is_in_no_file(tmp_path: Path) -> None:
    with Daemon([sys.executable, str(RUNTIME), "sys:exit"], tmp_path) as host:
        assert host.hello()["code_changed_at"] is None

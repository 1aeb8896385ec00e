"""What a host has loaded: the code of its agent, and not more of the standard library than that needs."""

from __future__ import annotations

import ast
import os
import sys
import textwrap
from pathlib import Path

from supervisor.hosts.runtime.loading import PACKAGES
from tests.host_kit import RUNTIME, Daemon, python_host


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


def test_a_bare_host_has_loaded_neither_tls_nor_launchers_and_asyncio_speaks_tls(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio, sys

        async def agent(turn):
            before = sorted({"_ssl", "asyncio.sslproto", "countermand.shared_launcher"} & {*sys.modules})
            import ssl

            def anonymous(side):
                # Ciphers that need no certificate.
                context = ssl.SSLContext(side)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.maximum_version = ssl.TLSVersion.TLSv1_2
                context.set_ciphers("aNULL:@SECLEVEL=0")
                return context

            async def serve(reader, writer):
                writer.write(await reader.readline())
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=anonymous(ssl.PROTOCOL_TLS_SERVER))
            there = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*there, ssl=anonymous(ssl.PROTOCOL_TLS_CLIENT))
            writer.write(b"hello\\n")
            heard = await reader.read()
            writer.close()
            server.close()
            return [before, heard.decode(), asyncio.sslproto is sys.modules["asyncio.sslproto"]]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == [[], "hello\n", True]


def test_what_is_set_on_asyncios_tls_is_set_on_the_module(tmp_path: Path, python: str) -> None:
    code = """
        import asyncio

        async def agent(turn):
            asyncio.sslproto.ours = 1
            asyncio.base_events.ssl.ours = 2
            import asyncio.sslproto as sslproto
            import ssl
            return [sslproto.ours, ssl.ours, "SSLContext" in dir(asyncio.selector_events.ssl)]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == [1, 2, True]


def test_the_installed_package_is_loaded_for_a_name_that_is_not_here_and_not_before(
    tmp_path: Path, python: str
) -> None:
    (tmp_path / "countermand").mkdir()
    (tmp_path / "countermand" / "__init__.py").write_text("open('loaded', 'w').close()\nelsewhere = 1")
    code = """
        import os

        async def agent(turn):
            before = os.path.exists("loaded")
            from countermand import elsewhere
            return [before, elsewhere, os.path.exists("loaded")]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        assert host.answered(host.run())["result"]["value"] == [False, 1, True]


def test_the_package_that_has_a_module_is_named_for_all_that_adapters_and_models_import() -> None:
    runtime = RUNTIME.parent / "runtime"
    imported = set()
    for file in (*(runtime / "adapters").glob("*.py"), *(runtime / "models").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    foreign = imported - sys.stdlib_module_names - {"countermand"}
    assert foreign
    assert foreign <= PACKAGES.keys()


def test_a_module_of_the_agents_own_that_is_not_there_is_looked_for_in_the_key_path(tmp_path: Path) -> None:
    with Daemon([sys.executable, str(RUNTIME), "no_such_agent.inner:answer"], tmp_path) as host:
        assert host.hello()["error"] == (
            "No module named 'no_such_agent', when no_such_agent.inner:answer was loaded; expected it in a directory "
            "of the key 'path'; to do: name the directory in which it is in that key"
        )
        assert host.exit_status() == 3

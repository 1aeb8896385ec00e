"""The documents name what exists: each path, test, mutant, function and link in them is looked up.

What is looked up in a document:

- a path: each word in backticks that begins with a folder of the project or ends in ``.py``, ``.md`` or ``.lock``, and
  each word of a fenced block that begins with such a folder. The folders of `SHORT_OF` may be left out
  (`store/sqlite.py`); ``*``, ``…`` and ``<noun>`` stand for any text;
- a test: ``path::test_name``, or ``test_name`` alone, which is in the file of the law whose section it is in;
- a function: ``name()`` or ``Class.name()`` behind a path, in the same paragraph or row, is defined in that file;
- a member: ``Class.name`` is defined in a class of that name;
- a mutant: what is emphasised on a line about mutants;
- a link: its file, and the heading that it names.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.sim.mutants import MUTANTS

ROOT: Final = Path(__file__).parents[1]
DOCUMENTS: Final = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
FOLDERS: Final = ("actors/", "docs/", "scripts/", "supervisor/", "tests/")
SUFFIXES: Final = (".py", ".md", ".lock")
MAPPED: Final = sorted(
    file.parent
    for folder in ("actors", "supervisor", "tests/sim")
    for file in (ROOT / folder).rglob("__init__.py")
    if len([*file.parent.glob("*.py")]) > 2
)
"""The packages of more than one file. The docstring of each has a map of it."""

SHORT_OF: Final = ("actors", "supervisor", "tests")
"""Folders that a path may leave out."""

PATH: Final = re.compile(r"[\w.*<>…-]+(/[\w.*<>…-]+)*/?")
ANY: Final = re.compile(r"\*|…|<\w+>")
SPAN: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EMPHASISED: Final = re.compile(r"(?<!\*)\*([^*\n]+)\*(?!\*)")
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


def faults(root: Path, text: str, folder: Path) -> list[str]:
    """Return what a document of `folder` names that does not exist below `root`."""
    found = [f"there is no {path}" for path in _paths_in_fences(text) if not _exists(root, path)]
    prose = FENCE.sub("", text)
    law: str | None = None
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[|#-]|\d+\.) ?)", prose):
        heading = re.match(r"\s*## L(\d+) ", block)
        law = heading[1] if heading is not None else None if block.lstrip().startswith("## ") else law
        found += _faults_of_block(root, block, law)
    for target in LINK.findall(prose):
        found += _faults_of_link(target, text, folder)
    return found


def _paths_in_fences(text: str) -> Iterator[str]:
    for fence in FENCE.findall(text):
        for word in fence.split():
            path = _path(word)
            if path is not None and path.startswith(FOLDERS):
                yield path


def _faults_of_block(root: Path, block: str, law: str | None) -> Iterator[str]:
    """Look up what one paragraph, list item or row of a table names; `law`: the number of its section's law."""
    here: str | None = None
    for span in SPAN.findall(block):
        for word in span.split():
            path = _path(word.partition("::")[0])
            if path is None:
                continue
            here = path if path.endswith(".py") else here
            if not _exists(root, path):
                yield f"there is no {path}"
            elif "::" in word and not _is_defined(root, path, word.partition("::")[2]):
                yield f"there is no {word.partition('::')[2]} in {path}"
        if re.fullmatch(r"test_\w+…?", span) and not _is_defined(root, f"tests/laws/test_l{law or ''}_*.py", span):
            yield f"there is no {span} in the tests of law {law}"
        function = re.fullmatch(r"([\w.]+)\(\)", span)
        if function is not None and here is not None and not _is_defined(root, here, function[1]):
            yield f"there is no {span} in {here}"
        elif re.fullmatch(r"[A-Z]\w*\.\w+(\(\))?", span) and span.removesuffix("()") not in _members(root):
            yield f"there is no {span}"
    for line in block.splitlines():
        if re.search(r"\bmutants?\b|\*\*guarded by\*\*", line, re.IGNORECASE):
            known = {mutant.name for mutant in MUTANTS}
            yield from (f"there is no mutant {name!r}" for name in EMPHASISED.findall(line) if name not in known)


def _faults_of_link(target: str, text: str, folder: Path) -> Iterator[str]:
    name, _, anchor = target.partition("#")
    if ":" in name:
        return
    file = folder / name
    if name and not file.exists():
        yield f"the link {target} leads nowhere"
    elif anchor:
        headings = HEADING.findall(file.read_text() if name else text)
        if anchor not in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}:
            yield f"the link {target} names no heading"


def _path(word: str) -> str | None:
    """Return a word as a path of the project; None: it is none."""
    path = word.removeprefix("./").rstrip(".,;:)")
    if PATH.fullmatch(path) is None or not (path.startswith(FOLDERS) or path.endswith(SUFFIXES)):
        return None
    return path


def _files(root: Path, path: str) -> list[Path]:
    pattern = ANY.sub("*", path.rstrip("/"))
    return [file for base in (root, *(root / folder for folder in SHORT_OF)) for file in base.glob(pattern)]


def _exists(root: Path, path: str) -> bool:
    return any(file.is_dir() or not path.endswith("/") for file in _files(root, path))


def _is_defined(root: Path, path: str, name: str) -> bool:
    """True if a function is defined in a file; `name…` is the beginning of one, `Class.name` is a method."""
    names = [known for file in _files(root, path) if file.suffix == ".py" for known in _functions(file)]
    return any(one.startswith(name[:-1]) for one in names) if name.endswith("…") else name in names


@functools.cache
def _functions(file: Path) -> frozenset[str]:
    """All functions of a file, those of classes with and without the name of the class."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inside = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            names.update(f"{node.name}.{one.name}" for one in inside)
    return frozenset(names)


@functools.cache
def _members(root: Path) -> frozenset[str]:
    """All methods and attributes of all classes, as `Class.name`."""
    names: set[str] = set()
    for folder in ("actors", "supervisor", "tests"):
        for file in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    names.update(f"{node.name}.{name}" for name in _members_of(node))
    return frozenset(names)


def _members_of(node: ast.ClassDef) -> Iterator[str]:
    for inside in ast.walk(node):
        match inside:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


# ── The documents as they are ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document: str) -> None:
    file = ROOT / document
    assert faults(ROOT, file.read_text(), file.parent) == []


def test_the_guarantees_name_tests_and_mutants() -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    assert len(re.findall(r"\btest_l\d+_", text)) > 100
    assert sum(f"*{mutant.name}*" in text for mutant in MUTANTS) > 100


def test_each_document_is_in_the_source_distribution() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    for document in DOCUMENTS:
        assert any(f"/{document}".startswith(included) for included in build["include"]), document


@pytest.mark.parametrize("package", ["actors", "supervisor"])
def test_the_drawing_of_the_architecture_has_every_room_in_the_order_of_the_import_contracts(package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == [package])
    floors = {name: floor for floor, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    drawing = re.search(rf"^{package}/   .*\n(?:    .*\n)*", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert drawing is not None
    rows = [re.findall(r"\w+", row) for row in drawing[0].removeprefix(f"{package}/").splitlines()]
    drawn = [[floors[name] for name in row] for row in rows]
    assert all(max(above) < min(below) for above, below in itertools.pairwise(drawn))
    assert {name for row in rows for name in row} == set(floors)
    rooms = {file.parent.name for file in (ROOT / package).glob("*/__init__.py")}
    assert rooms <= {name for row in rows for name in row}


@pytest.mark.parametrize("package", MAPPED, ids=lambda package: str(package.relative_to(ROOT)))
def test_the_docstring_of_a_package_names_each_of_its_files_and_packages_and_no_other(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    files = {file.name for file in package.glob("*.py")} - {"__init__.py"}
    rooms = {f"{file.parent.name}/" for file in package.glob("*/__init__.py")}
    named = set(re.findall(r"(?<![\w./])\w+(?:\.py\b|/(?!\w))", text))
    assert files | rooms <= named
    assert {name for name in named if not (package / name).exists()} == set()


# ── What is found where something was renamed ─────────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "laws").mkdir(parents=True)
    (tmp_path / "supervisor" / "store").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests" / "test_cell.py").write_text("def test_it_opens(): ...\n")
    (tmp_path / "tests" / "laws" / "test_l2_gate.py").write_text("def test_l2_it_shuts(): ...\n")
    (tmp_path / "supervisor" / "store" / "sqlite.py").write_text("class Store:\n    def commit(self): self.last = 1\n")
    (tmp_path / "docs" / "api.md").write_text("## A heading, of two\n")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "see `tests/test_cell.py`, `store/sqlite.py` and `supervisor/store/`",
        "see `tests/test_<noun>.py` and `tests/laws/test_l<n>_*.py`",
        "```\npython tests/test_cell.py  # and countermand/other.py\n```",
        "`tests/test_cell.py::test_it_opens`",
        "## L2 Gate\n\n| `test_l2_it_shuts` | `test_l2_…` |",
        "`supervisor/store/sqlite.py`: `Store.commit()`, `commit()`; `Store.last` and `GET /v1/tests`",
        "[there](docs/api.md), [its heading](docs/api.md#a-heading-of-two)",
        "mutants *no barrier*, *answer before commit*",
    ],
)
def test_what_is_there_is_no_fault(project: Path, text: str) -> None:
    assert faults(project, text, project) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see `tests/test_cells.py`", "there is no tests/test_cells.py"),
        ("see `store/sqlite3.py`", "there is no store/sqlite3.py"),
        ("run `./scripts/tset -k cell`", "there is no scripts/tset"),
        ("```\n$ ./scripts/tset\n```", "there is no scripts/tset"),
        ("see `tests/rules/test_l<n>_*.py`", "there is no tests/rules/test_l<n>_*.py"),
        ("`tests/test_cell.py::test_it_shuts`", "there is no test_it_shuts in tests/test_cell.py"),
        ("## L2 Gate\n\n`test_l2_it_opens`", "there is no test_l2_it_opens in the tests of law 2"),
        ("## L2 Gate\n\n## Other\n\n`test_l2_it_shuts`", "there is no test_l2_it_shuts in the tests of law None"),
        ("`store/sqlite.py`: `Store.close()`", "there is no Store.close() in store/sqlite.py"),
        ("`store/sqlite.py`, then `rollback()`", "there is no rollback() in store/sqlite.py"),
        ("`Store.first` counts", "there is no Store.first"),
        ("[there](docs/apis.md)", "the link docs/apis.md leads nowhere"),
        ("[there](docs/api.md#a-heading)", "the link docs/api.md#a-heading names no heading"),
        ("Mutants: *no such fault*", "there is no mutant 'no such fault'"),
    ],
)
def test_what_is_not_there_is_a_fault(project: Path, text: str, fault: str) -> None:
    assert faults(project, text, project) == [fault]

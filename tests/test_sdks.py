"""Agents as people have them, with packages from the registry as they are: whatever those start ends with the run.

The session's next turn is the SDK's too: its model is asked again, or its server, and what that says is in the log.

The packages are in an environment of their own, which `scripts/test` makes, and the first test that needs it else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ends_kit import ENDS, TESTS, Kind, drawn, end_in_one_way, end_inside, kill_daemons
from tests.kit import Kit
from tests.model_server import serving

ROOT = TESTS.parent
PYTHON = str(ROOT / ".venv-sdks" / "bin" / "python")
INSTALL_S = 900
"""The packages are 250 MB, and may have to be fetched."""


@dataclass
class Sdk(Kind):
    """An agent of `sdk_agents`. Moments that follow no step are in its imports too.

    Each import takes seconds. So after a Stop, an expiry or a kill a drawn half of the sessions is asked for what the
    SDK has to say, and the others for a plain text. A message that takes over always asks the SDK: of twenty ends of
    each kind, eleven are followed by a turn of its own.
    """

    word: str = "work"
    steps: int = 3
    light: str = "plain again"
    start_s: float = 2.0

    def prepare(self, folder: Path, mark: str, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder

    def options(self, mark: str) -> dict[str, Any]:
        env = {mark: "1", "MODEL_URL": self.model, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return {
            "run": f"tests.sdk_agents:{self.agent}",
            "python": PYTHON,
            "path": [str(ROOT)],
            "cwd": str(self.folder),
            "env": env,
            "spares": 0,
        }

    def answer(self, message: str) -> str:
        word, _, text = message.partition(" ")
        # In capitals it comes from the model or the server, and from nothing else.
        return f"said: {text if word == 'plain' else text.upper()}"

    model = ""


KINDS = [Sdk(agent=name) for name in ("pydantic_ai", "openai_agents", "langgraph", "mcp", "claude")]
LAUNCHED = [Sdk(agent=name) for name in ("mcp_launched", "claude_launched")]
"""Their server, or their CLI, is started by a launcher."""
of_kinds = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.agent) for kind in KINDS])
pytestmark = pytest.mark.timeout(INSTALL_S)


@pytest.fixture(scope="session")
def sdks() -> None:
    """Make the environment of these agents, unless it is there."""
    script = 'root=$1; source "$root/scripts/env.sh"; ensure_sdks'
    subprocess.run(["bash", "-euo", "pipefail", "-c", script, "bash", str(ROOT)], check=True)


@pytest.fixture(scope="module")
def model(sdks: None) -> Iterator[str]:
    """A model on this machine; its URL."""
    with serving() as url:
        yield url


@pytest.mark.parametrize("way", ENDS)
@of_kinds
def test_l3_no_process_is_left_of_an_sdk_however_and_whenever_its_run_is_ended(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, kind: Sdk, way: str
) -> None:
    kind.model = model
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    end_in_one_way(kit, [kind], way, drawn(f"{kind.agent} {way}"))


@pytest.mark.parametrize("way", ["stopped", "taken over"])
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.agent) for kind in LAUNCHED])
def test_l3_no_process_is_left_of_an_sdk_whose_child_is_launched(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, kind: Sdk, way: str
) -> None:
    kind.model = model
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    end_in_one_way(kit, [kind], way, drawn(f"{kind.agent} {way}"))


@of_kinds
def test_l3_no_process_is_left_of_an_sdk_whenever_its_daemon_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, kind: Sdk
) -> None:
    kind.model = model
    kill_daemons([kind], tmp_path, monkeypatch, drawn(f"{kind.agent} killed"))


@of_kinds
def test_l5_whatever_keeps_running_of_an_sdk_inside_is_in_the_receipt(
    kit: Kit, tmp_path: Path, model: str, kind: Sdk
) -> None:
    draw = drawn(f"{kind.agent} inside")
    end_inside(kit, kind, f"tests.sdk_agents:{kind.agent}", draw, PYTHON, MODEL_URL=model, HOME=str(tmp_path))

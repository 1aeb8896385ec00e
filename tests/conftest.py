"""Profiles of hypothesis: no deadlines, since these machines are shared; in CI the examples are fixed."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.kit import kit as kit  # noqa: PLC0414  # the fixture, for every test below

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

"""Repositories of git that tests make, whatever the user's own settings are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SETTINGS = ("user.name=t", "user.email=t@t", "commit.gpgsign=false", "advice.detachedHead=false")


def git(folder: Path, *arguments: str, **env: str) -> str:
    """What git says of this there, with `env` over the environment; a status other than 0 is an error."""
    command = ["git", *(word for setting in SETTINGS for word in ("-c", setting)), *arguments]
    run = subprocess.run(
        command, cwd=folder, env=os.environ | env, check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def commit_all(folder: Path, message: str, **env: str) -> str:
    """Commit the folder as it is; returns the commit's hash."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message, **env)
    return git(folder, "rev-parse", "HEAD")

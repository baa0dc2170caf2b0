"""Repositories of git that tests make, whatever the user's own settings are."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ladder.core.git import clean_environment

SETTINGS = ("user.name=t", "user.email=t@t", "commit.gpgsign=false", "advice.detachedHead=false")


def git(folder: Path, *arguments: str, **env: str) -> str:
    """Return what git says there, with `env` over the environment; a status other than 0 is an error."""
    command = ["git", *(word for setting in SETTINGS for word in ("-c", setting)), *arguments]
    # Without GIT_DIR and its like: a hook that runs the tests exports those of the user's own repository.
    run = subprocess.run(
        command, cwd=folder, env=clean_environment() | env, check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def commit_all(folder: Path, message: str, **env: str) -> str:
    """Commit the folder as it is; returns the commit's hash."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message, **env)
    return git(folder, "rev-parse", "HEAD")

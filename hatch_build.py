"""The addresses of the project in the package's metadata: those of the repository that it is built from.

`REPO_URL` (in GitHub Actions `GITHUB_SERVER_URL/GITHUB_REPOSITORY`) or, without it, the remote `origin`; `SITE_URL` is
that of the documentation. Nothing is written that is not known.
"""

from __future__ import annotations

import os
import re
import subprocess

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Fills `project.urls`."""

    def update(self, metadata: dict) -> None:
        """Add the addresses that are known."""
        repository, site = _repository(), os.environ.get("SITE_URL", "")
        urls = {"Documentation": site} if site else {}
        if repository:
            urls |= {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
        metadata["urls"] = urls


def _repository() -> str:
    if url := os.environ.get("REPO_URL", ""):
        return url.rstrip("/")
    if name := os.environ.get("GITHUB_REPOSITORY", ""):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    asked = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True, check=False)
    found = re.fullmatch(r"(?:git@|https://)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?\s*", asked.stdout)
    return f"https://{found[1]}/{found[2]}" if found else ""

"""The documentation builds without warnings and loads nothing from other hosts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def test_documentation_builds_without_warnings_or_remote_resources(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    build = subprocess.run(
        [*argv, "docs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        resources = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', page.read_text())
        assert not [url for url in resources if re.match(r"(https?:)?//", url)], page.name
    assert (tmp_path / "search.html").exists()

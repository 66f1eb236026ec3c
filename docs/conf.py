"""How Sphinx makes a site of these pages: sphinx-build -W -b html docs site."""

from batchjob import __version__

project = "batchjob"
author = "The batchjob developers"
copyright = "the batchjob developers"
version = release = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 4
# Files of the repository, which pages link to, are offered for download.
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"batchjob {__version__}"
html_copy_source = False
# Nothing is loaded from elsewhere.
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

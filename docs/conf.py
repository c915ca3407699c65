"""How `make docs` builds these pages: Sphinx, Markdown by MyST; the notebook is run."""

from __future__ import annotations

from sphinx.application import Sphinx

from rsn import __version__
from rsn.isa.overlays import page

project = "RSN toolchain"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]

# Markdown, with the anchors that GitHub makes of headings. The generated reference goes from ## to ####.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

# Files outside this folder that are pages of the site too.
ELSEWHERE = {"../hw/versal/README.md": "versal.md", "../benchmarks/README.md": "benchmarks.md"}

# The notebook is kept without results.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# Docstrings are prose with `code` in it.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100

# Names of types in signatures that no page describes are no links.
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"RSN toolchain {__version__}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]


def link_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace links to the files in `ELSEWHERE`, which lie outside docs/, by links to their pages. Sphinx calls it for
    each page. source: a list with the page's text, which is changed in place."""
    for file, name in ELSEWHERE.items():
        source[0] = source[0].replace(f"]({file}", f"]({name}")


def setup(app: Sphinx) -> None:
    """Write docs/isa.md, and register `link_pages`. Sphinx calls it once, before it reads the pages."""
    page.main()
    app.connect("source-read", link_pages)

"""How Sphinx builds the documentation: `make docs`, every warning an error."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import TypeAliasForwardRef

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from hookstats import __version__

project = "hookstats"
author = "hookstats contributors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "command_help",
]
exclude_patterns = ["_ext"]

# What is copied of a console is the commands, without what they print.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

# Markdown: anchors for headings, so that pages link to them as GitHub does.
myst_heading_anchors = 3

# Docstrings: Google style. What single backticks name is linked if it is public, else it is code.
napoleon_numpy_docstring = False
default_role = "py:obj"
smartquotes_action = "D"  # dashes; quotes stay as they are typed
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # Other libraries': their pages are not asked for, so that a build needs no network.
    ("py:class", r"(collections|contextlib|numpy|os|pathlib|re|torch|typing)\..*"),
    ("py:class", r"Axes|Console|Figure|Image|NDArray|Tensor|np\.bool_|u?([iI]nt|[fF]loat)\d+"),
    ("py:class", r"hookstats\.hooks\.(observe\.(Point|_Tensor|_Value)|attention\.Heads)"),
    ("py:class", r"Flags|Graph|Sums|What|Windows|hookstats\.rules\.history\._T"),  # inside rules
    ("py:class", r"hookstats\.(rules\.facts\.\w+|records\.alerts\.Incidents)"),
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_type_aliases = {
    "Selector": "hookstats.hooks.selection.Selector",
    "ChannelDim": "hookstats.hooks.channels.ChannelDim",
    "Action": "hookstats.rules.rule.Action",
    "Counts": "Tensor | NDArray[int64]",
    "Float64": "NDArray[float64]",
    "Int64": "NDArray[int64]",
    "Picture": "hookstats.tensors.pictures.Picture",
    "Values": "Tensor | NDArray[float64]",
}
TypeAliasForwardRef.__repr__ = lambda self: self.name  # what Sphinx shows of one in a union
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

highlight_language = "none"  # of blocks that name none
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "hookstats"
html_static_path = ["_static"]
html_css_files = ["hookstats.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a5fc4", "color-brand-content": "#0a5fc4"},
    "dark_css_variables": {"color-brand-primary": "#7db4ff", "color-brand-content": "#7db4ff"},
}

# Classes that functions make, never their users.
MADE = {
    *(
        "Capture",
        "CapturedCall",
        "ChannelSeries",
        "ChannelStats",
        "Edit",
        "Histogram",
        "Plots",
        "Run",
    ),
    *("RunComparison", "Series", "SiteSeries", "StepRecord", "TensorCapture", "Trace", "Watch"),
}


def hide_signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, *signature: str | None
) -> tuple[str, None] | None:
    """Leave out how classes are made that no one else makes."""
    return ("", None) if what == "class" and name.rpartition(".")[2] in MADE else None


COLON = "\N{RATIO}"


def hide_colon(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Napoleon takes the "int64 [C]" of "int64 [C]: what it is" for a class: not of attributes."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = lines[0].replace(":", COLON)


def show_colon(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Undo `hide_colon`."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def set_language(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Chinese pages say so: browsers choose fonts, and screen readers voices, by it."""
    if page.startswith("zh/"):
        context["language"] = "zh-CN"


def chinese_sidebar(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Chinese pages have the Chinese pages in their sidebar, and a way to the English ones."""
    if not page.startswith("zh/"):
        return
    env = app.env
    pages = ["zh/index", *env.toctree_includes["zh/index"]]
    items = [(one, env.titles[one].astext()) for one in pages] + [("index", "English")]
    links = "".join(
        f'<li class="toctree-l1{" current current-page" * (one == page)}">'
        f'<a class="reference internal" href="{context["pathto"](one)}">{escape(title)}</a></li>'
        for one, title in items
    )
    context["furo_navigation_tree"] = f'<ul class="current">{links}</ul>'


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", hide_signature)
    app.connect("autodoc-process-docstring", hide_colon, priority=400)  # before Napoleon
    app.connect("autodoc-process-docstring", show_colon, priority=600)
    app.connect("html-page-context", set_language)
    app.connect("html-page-context", chinese_sidebar, priority=900)  # after the theme's

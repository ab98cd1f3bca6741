"""Sphinx configuration."""

import importlib.metadata
import re

project = "ridgerider"
author = "the ridgerider authors"
release = importlib.metadata.version("ridgerider")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx-mathjax-offline"]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ridgerider"
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def from_markdown(app, what, name, obj, options, lines):
    """Docstrings mark code with single backticks and write |x| for a norm; reST wants otherwise."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"`([^`]+)`", line)
            parts[::2] = [re.sub(r"([|*_])", r"\\\1", text) for text in parts[::2]]
            parts[1::2] = [f"``{code}``" for code in parts[1::2]]
            lines[number] = "".join(parts).replace(r"\*\*Arguments\*\*", "**Arguments**")


def setup(app):
    app.connect("autodoc-process-docstring", from_markdown)

"""Sphinx configuration."""

import importlib.metadata
import importlib.util
import pathlib
import re

import typer

from ridgerider import cli

project = "ridgerider"
author = "the ridgerider authors"
release = importlib.metadata.version("ridgerider")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",  # source links that need no network
    "sphinx-mathjax-offline",
]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ridgerider"
html_show_copyright = False  # the licence is in its file
html_static_path = ["_static"]
html_css_files = ["gallery.css"]
html_js_files = [("accessible.js", {"defer": "defer"})]
html_theme_options = {"top_of_page_buttons": []}
# The manual can be built without PyTorch.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False


def from_markdown(app, what, name, obj, options, lines):
    """Docstrings mark code with single backticks and write |x| for a norm; reST wants otherwise.

    What stands between two pairs of stars, such as **Arguments**, is bold in both.
    """
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"`([^`]+)`", line)
            parts[::2] = [escaped(text) for text in parts[::2]]
            parts[1::2] = [f"``{code}``" for code in parts[1::2]]
            lines[number] = "".join(parts)


def escaped(text):
    """Marks that reST would read, but for words in bold."""
    parts = re.split(r"\*\*([A-Z][^*]*)\*\*", text)
    parts[::2] = [re.sub(r"([|*_])", r"\\\1", plain) for plain in parts[::2]]
    parts[1::2] = [f"**{bold}**" for bold in parts[1::2]]
    return "".join(parts)


def with_commands(app, name, source):
    """Put the commands of the program, with all options, into the page `cli`."""
    if name != "cli":
        return
    parts = []
    for command in typer.main.get_command(cli.app).commands.values():
        rows = [f"| {names(one)} | {about(one)} |" for one in command.params if one.help]
        table = ["| argument | meaning |", "|---|---|", *rows]
        parts += [f"## {command.name}", command.help, "\n".join(table)]
        parts.append(f"```sh\n{command.epilog.removeprefix('Example: ')}\n```")
    source[0] = source[0].replace("<!-- commands -->", "\n\n".join(parts))


def names(one):
    shown = [one.metavar or one.name] if one.param_type_name == "argument" else one.opts
    return ", ".join(f"`{name}`" for name in shown)


def about(one):
    is_shown = one.param_type_name == "option" and one.default not in (None, (), [])
    is_shown = is_shown and not isinstance(one.default, bool)
    text = f"{one.help} Default: `{one.default}`." if is_shown else one.help
    return " ".join(text.replace("|", "\\|").split())


def in_both_themes(app, name, source):
    """Show `NAME-dark.png` in the dark theme, where there is one."""
    folder = pathlib.Path(app.srcdir, name).parent

    def both(found):
        dark = f"{found[2]}-dark.png"
        if not (folder / dark).exists():
            return found[0]
        return f"{found[0]}{{.only-light}} ![{found[1]}]({dark}){{.only-dark}}"

    source[0] = re.sub(r"!\[([^\]]*)\]\((\S*images/\S+)\.png\)", both, source[0])


def setup(app):
    app.connect("autodoc-process-docstring", from_markdown)
    app.connect("source-read", with_commands)
    app.connect("source-read", in_both_themes)

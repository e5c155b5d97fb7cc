"""Sphinx configuration: ``make docs`` builds the site into ``docs/_build/html``."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

project = "asvspoof-cm"
author = copyright = "The asvspoof-cm developers"
version = release = installed_version("asvspoof-cm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_reference",
    "generated",
]
exclude_patterns = ["_build", "_extensions"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# Cross references must resolve. Types that annotations name are the exception: other projects'
# inventories are not fetched, and aliases and types of results need not be public.
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]

html_theme = "furo"
html_title = f"asvspoof-cm {release}"
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False

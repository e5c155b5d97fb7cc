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

# Cross references must resolve. Other projects' types are the exception, because their inventories
# are not fetched and the build needs no network; so are type variables, aliases, protocols and
# types of results that only annotations name.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|matplotlib|collections|contextlib|pathlib|os|typing)\..*"),
    (r"py:.*", r"(Tensor|Axes|ArrayLike|FloatArray|MetricLike|Starlette|Unit)"),
    (r"py:.*", r"asvspoof_cm\..*\.([A-Z]|_\w+|Augment|OpenAudio|Opener|PackedUtterance)"),
    (r"py:.*", r"asvspoof_cm\..*\.(Column|Row|SortedScores|Utterance)"),
    (r"py:.*", r"asvspoof_cm\.data\..*\.(AudioSource|MiniaturePaths|PackedAudio)"),
    (r"py:.*", r"asvspoof_cm\.metrics\..*\.(BreakdownRow|DetCurve|McNemar|SourceRow|TandemPoint)"),
    (r"py:.*", r"asvspoof_cm\.export\.OnnxModel"),
]

html_theme = "furo"
html_title = f"asvspoof-cm {release}"
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False

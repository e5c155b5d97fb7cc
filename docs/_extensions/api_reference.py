"""The API reference: a directive that documents all of a public module, and links in docstrings.

Docstrings say `name` for whatever they mention. Where that is a public object of the package it
becomes a cross reference, which Sphinx then has to resolve; all else becomes plain code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from docutils import nodes
from public_names import is_constant, public_modules, public_objects
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

_DESCRIPTORS = (property, cached_property, classmethod, staticmethod)
_BACKTICKS = re.compile(r"(?<![`:\w])`([^`<>]+)`(?![`_\w])")
_ONE_COLON = re.compile(r"(?<!:):(?!:)")
_HIDDEN_COLON = "\0"


class PublicModule(SphinxDirective):
    """Document every public name of a module: constants first, then what automodule finds."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        names = public_objects()[module]
        loaded = import_module(module)
        members = [name for name in names if not is_constant(getattr(loaded, name))]
        lines = [f".. automodule:: {module}", "   :imported-members:"]
        lines.append(f"   :members: {', '.join(members)}")
        lines += ["", f".. py:currentmodule:: {module}", ""]
        documentation = _constant_docs(module)
        for name in names:
            value = getattr(import_module(module), name)
            if is_constant(value):
                # The values of a mapping may be functions, whose repr is an address.
                keys = (
                    ", ".join(f"{key!r}: …" for key in value) if isinstance(value, Mapping) else ""
                )
                written = f"{{{keys}}}" if keys else repr(value)
                lines += [f".. py:data:: {name}", f"   :value: {written}", ""]
                lines += [f"   {link(line, module)}" for line in documentation.get(name, [])]
                lines.append("")
        return self.parse_text_to_nodes("\n".join(["````{eval-rst}", *lines, "````"]))


def _constant_docs(module: str) -> dict[str, list[str]]:
    """Return the docstrings of module-level values, in the module or in the parts of a package."""
    found: dict[str, list[str]] = {}
    for name in sorted(sys.modules):
        if name == module or name.startswith(f"{module}."):
            documented = ModuleAnalyzer.for_module(name).find_attr_docs()
            found |= {attribute: doc for (owner, attribute), doc in documented.items() if not owner}
    return found


@cache
def _targets() -> dict[str, set[str]]:
    """Return the documented full names that each way of writing a name may stand for."""
    targets: dict[str, set[str]] = {module: {module} for module in public_modules()}
    for module, names in public_objects().items():
        for name in names:
            for written in (name, f"{module}.{name}", f"{module.rpartition('.')[2]}.{name}"):
                targets.setdefault(written, set()).add(f"{module}.{name}")
    return targets


def link(text: str, module: str, parameters: frozenset[str] = frozenset()) -> str:
    """Return a docstring's line with its single backticks as reStructuredText roles."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        found = _targets().get(name.removesuffix("()"), set())
        found = {full for full in found if full.rpartition(".")[0] == module} or found
        if name in parameters or len(found) != 1:
            return f"``{name}``"
        return f":py:obj:`{name} <{next(iter(found))}>`"

    return _BACKTICKS.sub(replace, text).replace("|", r"\|")


def _link_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    del app, options
    module = next(
        (module for module in sorted(public_modules(), reverse=True) if name.startswith(module)), ""
    )
    parameters = frozenset(_parameters(obj))
    lines[:] = [
        line if line.lstrip().startswith((">>>", "...")) else link(line, module, parameters)
        for line in (line.replace(_HIDDEN_COLON, ":") for line in lines)
    ]


def _parameters(obj: Any) -> set[str]:
    names = set(getattr(obj, "__annotations__", {}))
    try:
        return names | set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return names


def _hide_colons(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from taking "text: more" for "type: text": here types are in annotations."""
    del app, name, obj, options
    for i, line in enumerate(lines):
        is_value = i == 0 and what in ("attribute", "data", "property")
        if is_value or (i and lines[i - 1].strip() in ("Returns:", "Yields:")):
            lines[i] = _ONE_COLON.sub(_HIDDEN_COLON, line)


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what stands elsewhere: fields in their class's signature, constants above."""
    del app, name, options
    is_value = is_constant(obj) and not isinstance(obj, _DESCRIPTORS)
    return True if skip or is_value else None


def _plain_defaults(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Write a dataclass's default factory as an ellipsis: "<factory>" can't be parsed."""
    del app, what, name, obj, options
    return (signature.replace("<factory>", "..."), returns) if signature else None


def _check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    del app
    documented = env.domains.python_domain.objects
    for module, names in public_objects().items():
        for name in names:
            if f"{module}.{name}" not in documented:
                message = "%s.%s is public and missing from the API reference"
                logging.getLogger(__name__).warning(message, module, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and the hooks; napoleon's own has the priority 500."""
    app.add_directive("public-module", PublicModule)
    app.connect("autodoc-process-docstring", _hide_colons, priority=400)
    app.connect("autodoc-process-docstring", _link_docstring, priority=600)
    app.connect("autodoc-process-signature", _plain_defaults)
    app.connect("autodoc-skip-member", _skip)
    app.connect("env-check-consistency", _check_complete)
    return {"parallel_read_safe": True}

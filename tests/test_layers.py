"""The architecture, as imports: they point one way, and metrics never see torch."""

import ast
import subprocess
import sys
from pathlib import Path

import asvspoof_cm

ROOT = Path(asvspoof_cm.__file__).parent

# Each entry may import those above it, never those below; a package is one entry.
LAYERS = [
    "labels",
    "_util",
    "_tables",
    "metrics",
    "calibration",
    "_formats",
    "audio",
    "frontends",
    "augmentation",
    "losses",
    "models",
    "_hub",
    "checkpoint",
    "data",
    "export",
    "scorer",
    "training",
    "plots",
    "engines",
    "serve",
    "cli",
    "__init__",
    "__main__",
]
TORCH_FREE = {"labels", "metrics", "calibration", "data.protocol", "_util"}
TORCH_FREE |= {"audio", "export", "_hub", "scorer", "scorer.files", "serve.decoding", "cli.score"}


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports anywhere, type-checking blocks included."""
    found = set()
    package = ["asvspoof_cm", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def test_imports_point_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        importer = _layer(path)
        assert importer in LAYERS, f"{path.name}: add it to LAYERS where it belongs"
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] != "asvspoof_cm" or len(parts) == 1 or parts[1] not in LAYERS:
                continue
            imported = parts[1]
            if imported != importer and LAYERS.index(imported) > LAYERS.index(importer):
                wrong.append(f"{path.relative_to(ROOT)} imports {imported}")
    assert not wrong


def test_models_do_not_import_each_other():
    models = {"tfparn", "aasist", "rawnet2", "resnet", "lcnn", "encoder"}
    for name in models:
        imported = _imports(ROOT / "models" / f"{name}.py")
        others = {f"asvspoof_cm.models.{other}" for other in models - {name}}
        assert not imported & others


def test_numpy_layers_do_not_import_torch():
    code = "import sys, importlib\n"
    code += "\n".join(
        f"importlib.import_module('asvspoof_cm.{name}')" for name in sorted(TORCH_FREE)
    )
    code += "\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_torchaudio_is_never_imported():
    for path in ROOT.rglob("*.py"):
        assert not any(name.split(".")[0] == "torchaudio" for name in _imports(path))

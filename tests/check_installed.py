"""Import the installed package beside its base dependencies only; run by ``make wheel-check``."""

import importlib
import importlib.util
import pkgutil
import sys

EXTRAS = ["matplotlib", "tqdm", "onnx", "onnxruntime", "fastapi", "torchaudio", "pytest"]


def main() -> str | None:
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    if present:
        return f"this check needs an environment without extras; found {present}"

    import asvspoof_cm

    if "torch" in sys.modules:
        return "`import asvspoof_cm` alone must not import torch"
    for name in asvspoof_cm.__all__:
        getattr(asvspoof_cm, name)
    for module in pkgutil.walk_packages(asvspoof_cm.__path__, "asvspoof_cm."):
        if not module.name.endswith(("__main__", ".serve.app", ".serve.answers")):
            importlib.import_module(module.name)
    from asvspoof_cm.checkpoint import DEFAULT_NAME

    scorer = asvspoof_cm.Scorer.from_pretrained(DEFAULT_NAME, device="cpu")
    if scorer.score_file([0.1, -0.1] * 8000).llr is None:
        return "the checkpoint of the package must be calibrated"
    sys.stdout.write(f"asvspoof-cm {asvspoof_cm.__version__} imports with base dependencies\n")
    return None


if __name__ == "__main__":
    sys.exit(main())

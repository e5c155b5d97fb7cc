"""Training: the paper's six systems and recipe, the loop, and the pieces to build another."""

from asvspoof_cm.runs import read_final, read_history
from asvspoof_cm.training.fit import FitResult, fit
from asvspoof_cm.training.loop import EpochResult, Learner, train_epoch, validate
from asvspoof_cm.training.objective import BatchLoss, Objective
from asvspoof_cm.training.schedule import EarlyStopping, linear_scaling, warmup_cosine
from asvspoof_cm.training.systems import (
    MODELS,
    SEEDS,
    Recipe,
    System,
    fine_tuning,
    model_system,
    system,
)
from asvspoof_cm.training.train import Corpus, evaluate_run, train_system
from asvspoof_cm.training.transforms import Augmented, Transform
from asvspoof_cm.utils.processes import gather_batch, gather_objects, process_group, rank_and_size

__all__ = [
    "MODELS",
    "SEEDS",
    "Augmented",
    "BatchLoss",
    "Corpus",
    "EarlyStopping",
    "EpochResult",
    "FitResult",
    "Learner",
    "Objective",
    "Recipe",
    "System",
    "Transform",
    "evaluate_run",
    "fine_tuning",
    "fit",
    "gather_batch",
    "gather_objects",
    "linear_scaling",
    "model_system",
    "process_group",
    "rank_and_size",
    "read_final",
    "read_history",
    "system",
    "train_epoch",
    "train_system",
    "validate",
    "warmup_cosine",
]

"""Training: the paper's six systems and recipe, the loop, and the pieces to build another."""

from asvspoof_cm.training.distributed import process_group as process_group
from asvspoof_cm.training.fit import FitResult as FitResult, fit as fit
from asvspoof_cm.training.loop import (
    EpochResult as EpochResult,
    TrainingState as TrainingState,
    train_epoch as train_epoch,
    validate as validate,
)
from asvspoof_cm.training.recipe import Recipe as Recipe
from asvspoof_cm.training.systems import (
    MODELS as MODELS,
    System as System,
    model_system as model_system,
    system as system,
)

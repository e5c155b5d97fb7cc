"""Training: the paper's six systems and recipe, the loop, and the pieces to build another."""

from asvspoof_cm.training.batches import Batches as Batches
from asvspoof_cm.training.fit import FitResult as FitResult, fit as fit
from asvspoof_cm.training.learner import Learner as Learner
from asvspoof_cm.training.loop import (
    EpochResult as EpochResult,
    train_epoch as train_epoch,
    validate as validate,
)
from asvspoof_cm.training.objective import BatchLoss as BatchLoss, Objective as Objective
from asvspoof_cm.training.recipe import Recipe as Recipe
from asvspoof_cm.training.run_folder import RunFolder as RunFolder
from asvspoof_cm.training.systems import (
    MODELS as MODELS,
    System as System,
    fine_tuning as fine_tuning,
    model_system as model_system,
    system as system,
)
from asvspoof_cm.training.train import (
    Corpus as Corpus,
    evaluate_run as evaluate_run,
    train_system as train_system,
)
from asvspoof_cm.training.transforms import Augmented as Augmented, Transform as Transform
from asvspoof_cm.utils.processes import (
    gather_batch as gather_batch,
    gather_objects as gather_objects,
    process_group as process_group,
    rank_and_size as rank_and_size,
)

"""Speech anti-spoofing countermeasures in PyTorch.

Names are imported when first used, so ``asvspoof_cm.metrics`` needs NumPy and SciPy only.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from asvspoof_cm._util import lazy_exports

if TYPE_CHECKING:
    from asvspoof_cm.audio import (
        fix_length as fix_length,
        load_audio as load_audio,
        resample as resample,
        tta_crops as tta_crops,
    )
    from asvspoof_cm.augmentation import (
        Codec as Codec,
        Compose as Compose,
        OneOf as OneOf,
        RandomApply as RandomApply,
        RawBoost as RawBoost,
        TFPARNAugment as TFPARNAugment,
    )
    from asvspoof_cm.calibration import (
        Calibration as Calibration,
        decide as decide,
        fit_calibration as fit_calibration,
        fit_fusion as fit_fusion,
        fuse_sasv as fuse_sasv,
        probability as probability,
        threshold_for as threshold_for,
    )
    from asvspoof_cm.checkpoint import (
        load_checkpoint as load_checkpoint,
        load_pretrained as load_pretrained,
        load_published as load_published,
        save_checkpoint as save_checkpoint,
    )
    from asvspoof_cm.data import (
        Protocol as Protocol,
        Segment as Segment,
        SpoofDataset as SpoofDataset,
        group_balanced as group_balanced,
        make_loader as make_loader,
        matched_pairs as matched_pairs,
        read_protocol as read_protocol,
        read_segments as read_segments,
        write_miniature as write_miniature,
        write_segments as write_segments,
    )
    from asvspoof_cm.export import export_onnx as export_onnx, load_onnx as load_onnx
    from asvspoof_cm.frontends import LFCC as LFCC, LogMel as LogMel, SincConv as SincConv
    from asvspoof_cm.labels import BONAFIDE as BONAFIDE, SPOOF as SPOOF
    from asvspoof_cm.losses import (
        LOSSES as LOSSES,
        focal_loss as focal_loss,
        focal_pairwise_loss as focal_pairwise_loss,
        pairwise_ranking_loss as pairwise_ranking_loss,
    )
    from asvspoof_cm.models import (
        AASIST as AASIST,
        LCNN as LCNN,
        TFPARN as TFPARN,
        AASISTConfig as AASISTConfig,
        Countermeasure as Countermeasure,
        Encoder as Encoder,
        EncoderConfig as EncoderConfig,
        RawNet2 as RawNet2,
        RawNet2Config as RawNet2Config,
        ResNet as ResNet,
        ResNetConfig as ResNetConfig,
        TFPARNConfig as TFPARNConfig,
    )
    from asvspoof_cm.scorer import Scorer as Scorer, StreamingScorer as StreamingScorer
    from asvspoof_cm.training import Recipe as Recipe, system as system
    from asvspoof_cm.training.fit import fit as fit

__getattr__, __dir__, __all__ = lazy_exports(__name__)
__version__ = _version("asvspoof-cm")

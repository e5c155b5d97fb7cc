"""The countermeasures: a waveform (batch, time) in, logits (batch, 2) out."""

from asvspoof_cm.models.aasist import AASIST, AASISTConfig
from asvspoof_cm.models.cosine import CosineHead, CosineHeadConfig
from asvspoof_cm.models.countermeasure import (
    Attended,
    Countermeasure,
    InputSettings,
    build_model,
    describe_model,
    model_names,
)
from asvspoof_cm.models.encoder import Encoder, EncoderConfig
from asvspoof_cm.models.lcnn import LCNN, LCNNConfig
from asvspoof_cm.models.rawnet2 import RawNet2, RawNet2Config
from asvspoof_cm.models.resnet import ResNet, ResNetConfig
from asvspoof_cm.models.tfparn import TFPARN, TFPARNConfig

__all__ = [
    "AASIST",
    "AASISTConfig",
    "Attended",
    "CosineHead",
    "CosineHeadConfig",
    "Countermeasure",
    "Encoder",
    "EncoderConfig",
    "InputSettings",
    "LCNN",
    "LCNNConfig",
    "RawNet2",
    "RawNet2Config",
    "ResNet",
    "ResNetConfig",
    "TFPARN",
    "TFPARNConfig",
    "build_model",
    "describe_model",
    "model_names",
]

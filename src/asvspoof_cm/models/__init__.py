"""The three countermeasures: a waveform (batch, time) in, logits (batch, 2) out."""

from asvspoof_cm.models.aasist import AASIST, AASISTConfig
from asvspoof_cm.models.rawnet2 import RawNet2, RawNet2Config
from asvspoof_cm.models.tfparn import TFPARN, TFPARNConfig

__all__ = ["AASIST", "AASISTConfig", "RawNet2", "RawNet2Config", "TFPARN", "TFPARNConfig"]

"""The countermeasures: a waveform (batch, time) in, logits (batch, 2) out."""

from asvspoof_cm.models.aasist import AASIST as AASIST, AASISTConfig as AASISTConfig
from asvspoof_cm.models.base import Countermeasure as Countermeasure, build_model as build_model
from asvspoof_cm.models.encoder import Encoder as Encoder, EncoderConfig as EncoderConfig
from asvspoof_cm.models.lcnn import LCNN as LCNN, LCNNConfig as LCNNConfig
from asvspoof_cm.models.rawnet2 import RawNet2 as RawNet2, RawNet2Config as RawNet2Config
from asvspoof_cm.models.resnet import ResNet as ResNet, ResNetConfig as ResNetConfig
from asvspoof_cm.models.tfparn import TFPARN as TFPARN, TFPARNConfig as TFPARNConfig

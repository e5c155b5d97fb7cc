"""Pretrained speech encoders as plain modules; `asvspoof_cm.models.Encoder` puts a head on them."""

"""Masks over log-Mel features."""

import torch

from asvspoof_cm.models import LogMelMask


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_masks_are_where_they_were_drawn():
    log_mel = torch.randn(50, 80, 400, generator=seeded())
    augment = LogMelMask()
    drawn = augment.draw(50, 80, 400, seeded())
    output = augment.apply(log_mel, drawn)
    for i in range(50):
        expected = log_mel[i].clone()
        for start, width in zip(drawn["mel_start"][i], drawn["mel_width"][i], strict=True):
            expected[start : start + width] = log_mel[i].mean()
        for start, width in zip(drawn["frame_start"][i], drawn["frame_width"][i], strict=True):
            expected[:, start : start + width] = log_mel[i].mean()
        assert torch.allclose(output[i], expected)
    assert torch.equal(augment(log_mel, generator=seeded()), output)
    assert torch.equal(augment.apply(log_mel, drawn), output)


def test_mask_widths_follow_specaugment():
    drawn = LogMelMask().draw(3000, 80, 400, seeded())
    mel_share = torch.bincount(drawn["mel_width"].flatten(), minlength=28) / 6000
    assert len(mel_share) == 28
    assert (mel_share * 28 - 1).abs().max() < 0.3
    assert int(drawn["frame_width"].max()) == 80  # 0.2 of 400 frames, below the maximum of 100
    assert int(drawn["frame_width"].min()) == 0
    assert int((drawn["mel_start"] + drawn["mel_width"]).max()) == 80
    assert int((drawn["frame_start"] + drawn["frame_width"]).max()) == 400
    assert int(drawn["mel_start"].min()) == 0


def test_no_masks_is_the_identity():
    log_mel = torch.randn(2, 80, 40, generator=seeded())
    augment = LogMelMask(n_mel_masks=0, n_frame_masks=0)
    assert torch.equal(augment(log_mel, generator=seeded()), log_mel)
    assert torch.equal(LogMelMask(max_mels=0, max_frames=0)(log_mel), log_mel)

"""Recorded noise and rooms, and masks over log-Mel features."""

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch

from asvspoof_cm.augmentation import FolderNoise, FolderReverb
from asvspoof_cm.augmentation.folders import reverberate
from asvspoof_cm.models import LogMelMask


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape, seed=0):
    return 0.2 * torch.randn(*shape, generator=seeded(seed))


def write(path, samples, sample_rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.asarray(samples, dtype=np.float32), sample_rate, subtype="FLOAT")


def test_noise_files_are_mixed_at_the_drawn_snr(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}" / "noise.wav", noise(5000, seed=i))
    augment, x = FolderNoise(folder=tmp_path), noise(50, 8000, seed=9)
    assert augment.files == ("0/noise.wav", "1/noise.wav", "2/noise.wav")
    drawn = augment.draw(50, 8000, seeded())
    assert set(drawn["file"]) == set(augment.files)
    added = (augment.apply(x, drawn) - x).double()
    measured = 10 * torch.log10(x.double().square().sum(1) / added.square().sum(1))
    assert (measured - drawn["snr_db"]).abs().max() < 0.01
    for i in range(50):
        source = np.asarray(noise(5000, seed=int(drawn["file"][i][0])))
        expected = np.resize(np.roll(source, -int(drawn["offset"][i] * 5000)), 8000)
        cosine = expected @ added[i].numpy() / np.linalg.norm(expected) / added[i].norm()
        assert cosine > 0.9999


def test_noise_of_another_rate_and_more_channels_is_brought_over(tmp_path):
    t = np.arange(44100) / 44100
    tone = np.sin(2 * np.pi * 1000 * t)
    write(tmp_path / "tone.wav", np.stack([tone, 0.5 * tone], axis=1), 44100)
    added = FolderNoise(folder=tmp_path)(torch.ones(16000), generator=seeded()) - 1
    spectrum = torch.fft.rfft(added).abs()
    assert int(spectrum.argmax()) == 1000
    assert spectrum[1000] > 20 * spectrum[1010:].max()


def test_an_excerpt_of_silence_starts_where_sound_does(tmp_path):
    samples = np.zeros(20000)
    samples[15000:15100] = 0.5
    write(tmp_path / "mostly_silent.wav", samples)
    augment, x = FolderNoise(folder=tmp_path, snr_db=(10, 10)), torch.ones(40, 2000)
    added = (augment(x, generator=seeded()) - x).square().mean(dim=1)
    assert torch.allclose(added, torch.full((40,), 0.1), rtol=1e-3)


def test_a_silent_noise_file_is_an_error(tmp_path):
    write(tmp_path / "silent.wav", np.zeros(1000))
    with pytest.raises(ValueError, match=r"silent.wav must hold noise; all its samples are zero"):
        FolderNoise(folder=tmp_path)(torch.ones(10), generator=seeded())
    with pytest.raises(ValueError, match=r"silent.wav must hold an impulse response"):
        FolderReverb(folder=tmp_path)(torch.ones(10), generator=seeded())


def test_folders_must_hold_audio(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold files ending in .flac"):
        FolderNoise(folder=tmp_path)
    with pytest.raises(NotADirectoryError, match="`folder` must be a folder of audio files"):
        FolderReverb(folder=tmp_path / "none")


def test_reverb_is_convolution_from_the_direct_path_on():
    x, response = noise(3, 2000).double(), noise(3, 700, seed=1).double() * 0.1
    for row, direct in enumerate((0, 30, 699)):
        response[row, direct] = 1.0
    output = reverberate(x, response).numpy()
    for i, direct in enumerate((0, 30, 699)):
        expected = scipy.signal.fftconvolve(x[i], response[i])[direct : direct + 2000]
        expected *= np.linalg.norm(x[i]) / np.linalg.norm(expected)
        assert np.abs(output[i] - expected).max() < 1e-12


def test_reverb_of_an_impulse_is_the_identity():
    x, response = noise(1, 2000), torch.zeros(1, 500)
    response[0, 120] = -0.3
    assert (reverberate(x, response) + x).abs().max() < 1e-6


def test_rooms_of_different_lengths_and_rates(tmp_path):
    rng = np.random.default_rng(0)
    for n, rate in [(400, 16000), (4000, 16000), (2000, 8000)]:
        write(tmp_path / f"{n}.wav", rng.standard_normal(n) * np.exp(-np.arange(n) / n * 7), rate)
    augment, x = FolderReverb(folder=tmp_path), noise(12, 6000)
    drawn = augment.draw(12, 6000, seeded())
    assert set(drawn["file"]) == {"400.wav", "4000.wav", "2000.wav"}
    y = augment.apply(x, drawn)
    assert torch.allclose(y.norm(dim=1), x.norm(dim=1), rtol=1e-5)
    row = drawn["file"].index("400.wav")
    response = torch.from_numpy(soundfile.read(tmp_path / "400.wav")[0])[None]
    expected = reverberate(x[row : row + 1], response)
    assert (y[row] - expected[0]).abs().max() < 1e-5


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_masks_keep_shape_and_dtype(dtype):
    log_mel = torch.randn(80, 40, generator=seeded()).to(dtype)
    output = LogMelMask()(log_mel, generator=seeded())
    assert output.shape == (80, 40)
    assert output.dtype == dtype
    wide = LogMelMask(max_mels=1000, max_frames=1000, max_share=1.0)
    assert wide(log_mel, generator=seeded()).isfinite().all()


def test_no_masks_is_the_identity():
    log_mel = torch.randn(2, 80, 40, generator=seeded())
    augment = LogMelMask(n_mel_masks=0, n_frame_masks=0)
    assert torch.equal(augment(log_mel, generator=seeded()), log_mel)
    assert torch.equal(LogMelMask(max_mels=0, max_frames=0)(log_mel), log_mel)

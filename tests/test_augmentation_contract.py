"""What every augmentation promises, tried on every augmentation."""

import io
import pickle

import numpy as np
import pytest
import torch

from asvspoof_cm import augmentation as aug
from asvspoof_cm.augmentation.base import select_rows

INF = float("inf")
CODECS = ("mu-law", "a-law", "gsm", "ima-adpcm", "vorbis")
CLIPS = tuple(
    torch.randn(n, generator=torch.Generator().manual_seed(n)) * torch.exp(-torch.arange(n) / n)
    for n in (800, 3000, 5000)
)
AUGMENTATIONS = [
    aug.Compose([aug.Polarity(), aug.Gain()]),
    aug.Clipping(below_peak_db=(6.0, 20.0)),
    aug.AutomaticGain(time_s=(0.01, 0.05)),
    aug.PacketLoss(share=(0.9, 0.9)),
    aug.Gaps(n_gaps=(1, 3), at_start=True),
    aug.SpeechCoder(),
    aug.RandomFIR(),
    aug.RandomButterworth(),
    aug.WhiteNoise(),
    aug.TFPARNAugment(p=1.0),
    *(aug.RawBoost(algorithm) for algorithm in range(1, 9)),
    aug.RandomEqualizer(),
    aug.RandomRoom(decay_s=(0.01, 0.1)),
    aug.ColouredNoise(),
    aug.RandomBandLimit(low_hz=(50.0, 300.0)),
    aug.RandomSpeed(percent=(105, 110)),
    aug.CopySynthesis(),
    aug.Codec(codecs=CODECS, narrowband_p=0.5),
    aug.RecordedNoise(clips=CLIPS, n_clips=(1, 3)),
    aug.OneOf([aug.RandomFIR(), aug.RandomEqualizer()], p=0.5),
    aug.RandomApply(aug.RandomFIR(), p=0.5),
]


@pytest.fixture(params=AUGMENTATIONS, ids=lambda augment: type(augment).__name__)
def augment(request, monkeypatch):
    small = ((64, 16, 4, 2), (128, 32, 8, 1))
    monkeypatch.setattr(aug.spoof, "_VOCODERS", small)
    return request.param


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def speech(*shape, seed=0):
    """Noise with a falling spectrum and a syllabic rhythm, peak 0.9."""
    noise = torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
    smooth = torch.cumsum(noise, -1)
    smooth = smooth - torch.nn.functional.avg_pool1d(
        smooth.reshape(-1, 1, shape[-1]), 401, 1, 200, count_include_pad=False
    ).reshape(shape)
    rhythm = 0.6 + 0.4 * torch.sin(torch.arange(shape[-1]) / 700)
    wave = smooth * rhythm
    return (0.9 * wave / wave.abs().amax(-1, keepdim=True)).float()


def test_keeps_shape_and_dtype_and_rounds_at_the_end(augment):
    waveform = speech(3, 4000)
    drawn = augment.draw(3, 4000, seeded())
    for dtype in (torch.float64, torch.float32, torch.float16):
        output = augment.apply(waveform.to(dtype), drawn)
        assert (output.shape, output.dtype) == (waveform.shape, dtype)
        assert output.isfinite().all()
    half = waveform.bfloat16()
    assert torch.equal(augment.apply(half, drawn), augment.apply(half.float(), drawn).bfloat16())
    assert augment(waveform[0]).shape == (4000,)


def test_changes_its_input_and_leaves_the_argument_alone(augment):
    waveform = speech(8, 4000)
    before = waveform.clone()
    drawn = augment.draw(8, 4000, seeded())
    changed = (augment.apply(waveform, drawn) != waveform).any(dim=1)
    assert torch.equal(waveform, before)
    if getattr(augment, "p", 1) < 1:
        assert torch.equal(changed, drawn["choice"] < len(augment.augmentations))
        assert 0 < changed.sum() < 8
    else:
        assert changed.all()


def test_replay_is_bit_equal_also_from_a_file(augment):
    waveform = speech(3, 4000)
    drawn = augment.draw(3, 4000, seeded())
    output = augment.apply(waveform, drawn)
    assert torch.equal(augment(waveform, generator=seeded()), output)
    file = io.BytesIO()
    torch.save(drawn, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)
    assert repr(again) == repr(drawn)
    assert torch.equal(augment.apply(waveform, again), output)
    assert torch.equal(pickle.loads(pickle.dumps(augment)).apply(waveform, again), output)


def test_seeds_decide_and_no_global_generator_is_touched(augment):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state())  # noqa: NPY002

    before, waveform = states(), speech(32, 500)
    first = augment(waveform, generator=seeded(1))
    assert torch.equal(first, augment(waveform, generator=seeded(1)))
    assert not torch.equal(first, augment(waveform, generator=seeded(2)))
    assert not torch.equal(augment(waveform), augment(waveform))
    assert not torch.equal(first, augment.apply(waveform, augment.draw(32, 500)))
    assert states() == before


def test_each_row_has_its_own_draw(augment):
    output = augment(speech(4000).expand(12, -1), generator=seeded())
    assert len({tuple(row.tolist()) for row in output}) > 1


def test_silence_one_sample_and_a_minute(augment, minute):
    for waveform in (torch.zeros(3, 4000), torch.tensor([0.5]), minute):
        output = augment(waveform, generator=seeded())
        assert output.shape == waveform.shape
        assert output.isfinite().all()


@pytest.fixture(scope="module")
def minute():
    return speech(960_000)


def test_gradients_pass(augment):
    if isinstance(augment, (aug.Codec, aug.RandomSpeed)):
        pytest.skip("codecs and resampling leave torch")
    waveform = speech(2, 2000).requires_grad_()
    output = augment(waveform, generator=seeded())
    output.square().sum().backward()
    assert waveform.grad.isfinite().all()
    assert waveform.grad.abs().sum() > 0
    assert (output.detach() - augment(waveform.detach(), generator=seeded())).abs().max() < 1e-4


def test_some_rows_or_parts_of_a_batch_are_as_all_at_once(augment, monkeypatch):
    waveform = speech(7, 4000).double()
    drawn = augment.draw(7, 4000, seeded())
    output = augment.apply(waveform, drawn)
    for rows in (torch.tensor([0]), torch.tensor([2, 6, 3])):
        part = augment.apply(waveform[rows], select_rows(drawn, rows))
        assert (part - output[rows]).abs().max() < 1e-9
    monkeypatch.setattr(aug.base, "CHUNK", 8000)
    assert (augment.apply(waveform, drawn) - output).abs().max() < 1e-9


def test_nothing_waits_for_the_device(augment):
    if isinstance(augment, (aug.Codec, aug.RandomSpeed)):
        pytest.skip("codecs and resampling leave torch")
    waveform = torch.empty(3, 4000, device="meta")
    assert augment(waveform, generator=seeded()).shape == (3, 4000)


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5])
def test_p_is_the_probability_of_a_row(p):
    waveform = speech(4, 1000)
    for augment in (aug.TFPARNAugment(p=p), aug.RawBoost(4, p=p), aug.OneOf([aug.Gain()], p=p)):
        choice = augment.draw(5000, 8, seeded())["choice"]
        share = (choice < len(augment.augmentations)).double().mean()
        assert abs(share - p) <= 4 * np.sqrt(p * (1 - p) / 5000)
        if p == 0:
            assert torch.equal(augment(waveform), waveform)


def test_one_of_follows_its_weights():
    augment = aug.OneOf([aug.Gain(), aug.WhiteNoise(), aug.RandomFIR()], weights=[1, 0, 3])
    choice = augment.draw(4000, 8, seeded())["choice"]
    assert choice.unique().tolist() == [0, 2]
    assert abs((choice == 0).double().mean() - 0.25) < 0.03


def test_compose_is_one_after_the_other():
    waveform, stages = speech(2, 1000), [aug.Gain(), aug.RandomFIR()]
    drawn = aug.Compose(stages).draw(2, 1000, seeded())
    expected = waveform
    for stage, of_stage in zip(stages, drawn["stages"], strict=True):
        expected = stage.apply(expected, of_stage)
    assert torch.equal(aug.Compose(stages).apply(waveform, drawn), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aug.Gain()(torch.ones(2, 3, 4)), r"`waveform` must have shape .*got \(2, 3, 4\)"),
        (lambda: aug.Gain()(torch.ones(0, 3)), r"hold samples; got \(0, 3\)"),
        (
            lambda: aug.Gain()(torch.ones(3, dtype=torch.int16)),
            "must be a float tensor; got torch.int",
        ),
        (
            lambda: aug.Gain()(np.ones(5, dtype=np.float32)),
            "got ndarray. Convert an array: torch.from",
        ),
        (lambda: aug.Gain()(torch.ones(3), generator=0), "on the CPU; got int. Make one"),
        (
            lambda: aug.Gain().draw(0, 10),
            "`n_rows` and `n_samples` must be at least 1; got 0 and 10",
        ),
        (
            lambda: aug.Gain().apply(torch.ones(3, 5), aug.Gain().draw(2, 5)),
            "`drawn` is for 2 rows; `waveform` has 3. Draw with n_rows=3",
        ),
        (
            lambda: aug.Gain().apply(torch.ones(5), aug.WhiteNoise().draw(1, 5)),
            "`drawn` must come from Gain.draw; got that of 'WhiteNoise'",
        ),
        (lambda: aug.Gain(gain_db=(3, 1)), r"`gain_db` must be \(low, high\)"),
        (lambda: aug.Gain(gain_db=(1000, 1000)), "`gain_db` .* high <= 200"),
        (lambda: aug.WhiteNoise(snr_db=(3, INF)), "finite width; got"),
        (lambda: aug.RandomApply(aug.Gain(), p=1.5), "`p` must be between 0 and 1; got 1.5"),
        (lambda: aug.Compose([]), "at least one augmentation; got none"),
        (lambda: aug.Compose([aug.Gain]), "A class needs its parentheses"),
        (lambda: aug.OneOf([aug.Gain()], weights=[1, 2]), "`weights` must be 1 numbers >= 0"),
        (lambda: aug.RandomEqualizer(n_points=1), "`n_points` must be at least 2; got 1"),
        (lambda: aug.RandomBandLimit(high_hz=(3000.0, 9000.0)), r"<= 8000.*got \(3000.0, 9000.0\)"),
        (lambda: aug.RandomBandLimit(low_hz=(0.0, 4000.0)), "`low_hz` must be .* <= 3000"),
        (lambda: aug.RandomBandLimit(high_hz=(float("nan"), 9.0)), "`high_hz` must be .*got .nan"),
        (lambda: aug.Clipping(soft_p=-1), "`soft_p` must be between 0 and 1; got -1"),
        (lambda: aug.PacketLoss(share=(0.0, 2.0)), "`share` must be .* <= 1"),
        (lambda: aug.Gaps(duration_s=(-1.0, 2.0)), "`duration_s` must be .* 0 <= low"),
        (lambda: aug.SpeechCoder(n_pulses=(0, 5)), "`n_pulses` must be .* 1 <= low"),
        (lambda: aug.RecordedNoise(clips=[]), "`clips` must hold at least one recording; got none"),
        (lambda: aug.RecordedNoise(clips=[torch.ones(2, 9)]), r"float32 and shape \(2, 9\)"),
        (
            lambda: aug.transcode(torch.ones(9), "amr"),
            "`codec` must be one that .* mu-law.*got 'amr'",
        ),
        (
            lambda: aug.transcode(torch.ones(9), "vorbis", compression_level=2),
            "`compression_level` must be between 0 and 1; got 2",
        ),
        (
            lambda: aug.Codec(codecs=("amr",)),
            r"`codecs` must be names among mu-law.*got \('amr',\)",
        ),
        (lambda: aug.Codec(codecs=()), r"`codecs` must be names among mu-law.*got \(\)"),
        (lambda: aug.RawBoost(9), "`algorithm` must be 1 to 8; got 9"),
    ],
)
def test_errors_say_what_and_how(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_codecs_refuse_what_would_crash_them():
    for value in (float("nan"), INF):
        waveform = speech(1, 4000)
        waveform[0, 7] = value
        with pytest.raises(ValueError, match="be finite; got 1 NaN or infinite of 4000 samples"):
            aug.Codec(codecs=CODECS)(waveform, generator=seeded())


NOISES = [
    aug.WhiteNoise,
    aug.ColouredNoise,
    aug.StationaryNoise,
    lambda **ratio: aug.RecordedNoise(clips=CLIPS, **ratio),
]


@pytest.mark.parametrize("noise", NOISES)
def test_the_ratio_is_exact_and_an_infinite_one_the_identity(noise):
    for n_rows, n_samples, dtype in ((500, 400, torch.float64), (4, 64_000, torch.float32)):
        waveform = speech(n_rows, n_samples).to(dtype)
        drawn = noise().draw(n_rows, n_samples, seeded())
        added = noise().apply(waveform, drawn).double() - waveform.double()
        ratio_db = 10 * torch.log10(waveform.double().square().sum(1) / added.square().sum(1))
        assert (ratio_db - drawn["snr_db"]).abs().max() < 0.01
    assert torch.equal(noise(snr_db=(INF, INF))(waveform), waveform)


@pytest.mark.parametrize("scale", [1e-25, 1e-30, 1e20])
@pytest.mark.parametrize("noise", NOISES)
def test_noise_follows_the_level_however_quiet(scale, noise):
    waveform = speech(2, 4000)
    drawn = noise().draw(2, 4000, seeded())
    expected = noise().apply(waveform, drawn)
    scaled = noise().apply(waveform * scale, drawn) / scale
    assert torch.allclose(scaled, expected, rtol=1e-4, atol=1e-5)

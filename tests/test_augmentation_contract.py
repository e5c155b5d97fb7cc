"""What every augmentation promises, tried on every augmentation."""

import io
import pickle

import numpy as np
import pytest
import torch

from asvspoof_cm.augmentation import (
    AutomaticGain,
    Clipping,
    Codec,
    ColouredNoise,
    Compose,
    ConvolutiveNoise,
    CopySynthesis,
    Gain,
    Gaps,
    OneOf,
    PacketLoss,
    Polarity,
    RandomApply,
    RandomBandLimit,
    RandomButterworth,
    RandomEqualizer,
    RandomFIR,
    RandomRoom,
    RandomSpeed,
    RawBoost,
    RecordedNoise,
    SpeechCoder,
    StationaryNoise,
    TFPARNAugment,
    WhiteNoise,
    base,
    spoof,
    transcode,
)

INF = float("inf")
CODECS = ("mu-law", "a-law", "gsm", "ima-adpcm", "vorbis")
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


CLIPS = tuple(
    torch.randn(n, generator=torch.Generator().manual_seed(n)) * torch.exp(-torch.arange(n) / n)
    for n in (800, 3000, 5000)
)
NAMES = {
    "gain": lambda: Gain(),
    "polarity": lambda: Compose([Polarity(), Gain()]),
    "clipping": lambda: Clipping(below_peak_db=(6.0, 20.0)),
    "automatic_gain": lambda: AutomaticGain(time_s=(0.01, 0.05)),
    "packet_loss": lambda: PacketLoss(share=(0.9, 0.9)),
    "gaps": lambda: Gaps(n_gaps=(1, 3), at_start=True),
    "speech_coder": lambda: SpeechCoder(),
    "fir": lambda: RandomFIR(),
    "butterworth": lambda: RandomButterworth(),
    "white_noise": lambda: WhiteNoise(),
    "tfparn": lambda: TFPARNAugment(p=1.0),
    **{f"rawboost_{a}": lambda a=a: RawBoost(a) for a in range(1, 9)},
    "equalizer": lambda: RandomEqualizer(),
    "room": lambda: RandomRoom(decay_s=(0.01, 0.1)),
    "coloured_noise": lambda: ColouredNoise(),
    "band_limit": lambda: RandomBandLimit(low_hz=(50.0, 300.0)),
    "speed": lambda: RandomSpeed(percent=(105, 110)),
    "copy_synthesis": lambda: CopySynthesis(),
    "codec": lambda: Codec(codecs=CODECS, narrowband_p=0.5),
    "recorded_noise": lambda: RecordedNoise(clips=CLIPS, n_clips=(1, 3)),
    "compose": lambda: Compose([Gain(), WhiteNoise()]),
    "one_of": lambda: OneOf([RandomFIR(), RandomEqualizer()]),
    "random_apply": lambda: RandomApply(RandomFIR(), p=0.5),
}


@pytest.fixture(params=NAMES)
def augment(request, monkeypatch):
    small = (spoof._Vocoder(64, 16, 4, 2), spoof._Vocoder(128, 32, 8, 1))
    monkeypatch.setattr(spoof, "_VOCODERS", small)
    return NAMES[request.param]()


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keeps_shape_and_dtype(augment, dtype):
    for shape in [(4000,), (3, 4000)]:
        waveform = speech(*shape).to(dtype)
        output = augment(waveform, generator=seeded())
        assert output.shape == waveform.shape
        assert output.dtype == dtype
        assert output.isfinite().all()


def test_half_precision_is_float32_rounded_at_the_end(augment):
    waveform = speech(3, 4000).bfloat16()
    drawn = augment.draw(3, 4000, seeded())
    wide = augment.apply(waveform.float(), drawn)
    assert torch.equal(augment.apply(waveform, drawn), wide.bfloat16())


def test_changes_its_input_and_leaves_the_argument_alone(augment):
    waveform = speech(8, 4000)
    before = waveform.clone()
    drawn = augment.draw(8, 4000, seeded())
    changed = (augment.apply(waveform, drawn) != waveform).any(dim=1)
    assert torch.equal(waveform, before)
    expected = torch.ones(8, dtype=torch.bool)
    if isinstance(augment, RandomApply) and augment.p < 1:
        expected[:] = False
        expected[drawn["choice"] == 0] = True
        assert 0 < expected.sum() < 8
    assert torch.equal(changed, expected)


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


def test_seeds_decide_and_without_one_each_call_takes_a_fresh_one(augment):
    waveform = speech(32, 500)
    first = augment(waveform, generator=seeded(1))
    assert torch.equal(first, augment(waveform, generator=seeded(1)))
    assert not torch.equal(first, augment(waveform, generator=seeded(2)))
    torch.manual_seed(0)
    first = augment(waveform)
    torch.manual_seed(0)
    assert not torch.equal(first, augment(waveform))
    assert not torch.equal(first, augment.apply(waveform, augment.draw(32, 500)))


def test_never_touches_the_global_generators(augment):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state())  # noqa: NPY002

    before = states()
    augment(speech(2, 4000), generator=seeded())
    augment(speech(2, 4000))
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


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"codec"}))
def test_a_row_does_not_depend_on_its_neighbours(name):
    augment = NAMES[name]()
    waveform = speech(4, 4000).double()
    drawn = augment.draw(4, 4000, seeded())
    other = waveform.clone()
    other[1:] = speech(3, 4000, seed=5).double()
    difference = augment.apply(waveform, drawn)[0] - augment.apply(other, drawn)[0]
    assert difference.abs().max() < 1e-12


def test_gradients_pass(augment):
    if isinstance(augment, (Codec, RandomSpeed)):
        pytest.skip("codecs and resampling leave torch")
    waveform = speech(2, 2000).requires_grad_()
    output = augment(waveform, generator=seeded())
    output.square().sum().backward()
    assert waveform.grad.isfinite().all()
    assert waveform.grad.abs().sum() > 0
    assert (output.detach() - augment(waveform.detach(), generator=seeded())).abs().max() < 1e-4


def test_rows_can_be_replayed_alone(augment):
    waveform = speech(6, 4000).double()
    drawn = augment.draw(6, 4000, seeded())
    output = augment.apply(waveform, drawn)
    for start, stop in [(0, 1), (2, 5), (4, 9)]:
        part = augment.apply(waveform[start:stop], augment.select(drawn, start, stop))
        assert (part - output[start:stop]).abs().max() < 1e-9


def test_large_batches_are_taken_in_parts(augment, monkeypatch):
    waveform = speech(7, 4000).double()
    drawn = augment.draw(7, 4000, seeded())
    whole = augment.apply(waveform, drawn)
    monkeypatch.setattr(base, "CHUNK", 8000)
    assert (augment.apply(waveform, drawn) - whole).abs().max() < 1e-9


def test_nothing_waits_for_the_device(augment):
    if isinstance(augment, (Codec, RandomSpeed)):
        pytest.skip("codecs and resampling leave torch")
    waveform = torch.empty(3, 4000, device="meta")
    assert augment(waveform, generator=seeded()).shape == (3, 4000)


def test_p_is_the_probability_of_a_row():
    for augment, p in [(TFPARNAugment(), 0.5), (RawBoost(3, p=0.2), 0.2)]:
        share = (augment.draw(5000, 8, seeded())["choice"] == 0).double().mean()
        assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / 5000)


def test_p_zero_is_the_identity():
    waveform = speech(4, 1000)
    for augment in (TFPARNAugment(p=0.0), RawBoost(4, p=0.0), RandomApply(Gain(), p=0.0)):
        drawn = augment.draw(4, 1000, seeded())
        assert drawn["branches"] == {}
        assert torch.equal(augment.apply(waveform, drawn), waveform)


def test_one_of_follows_its_weights():
    drawn = OneOf([Gain(), WhiteNoise(), RandomFIR()], weights=[1, 0, 3]).draw(4000, 8, seeded())
    assert list(drawn["branches"]) == [0, 2]
    assert drawn["choice"].unique().tolist() == [0, 2]
    assert abs(drawn["branches"][0]["n_rows"] / 4000 - 0.25) < 0.03


def test_compose_is_one_after_the_other():
    waveform, stages = speech(2, 1000), [Gain(), RandomFIR()]
    drawn = Compose(stages).draw(2, 1000, seeded())
    expected = waveform
    for stage, of_stage in zip(stages, drawn["stages"], strict=True):
        expected = stage.apply(expected, of_stage)
    assert torch.equal(Compose(stages).apply(waveform, drawn), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Gain()(torch.ones(2, 3, 4), generator=seeded()),
            ValueError,
            r"`waveform` must have shape \(time,\) or \(batch, time\).*got \(2, 3, 4\)",
        ),
        (
            lambda: Gain()(torch.ones(0, 3), generator=seeded()),
            ValueError,
            r"hold samples; got \(0, 3\)",
        ),
        (
            lambda: Gain()(torch.ones(3, dtype=torch.int16), generator=seeded()),
            TypeError,
            "`waveform` must be a float tensor; got torch.int16",
        ),
        (
            lambda: Gain()(torch.ones(3), generator=0),
            TypeError,
            "`generator` must be a torch.Generator on the CPU; got int. Make one",
        ),
        (
            lambda: Gain().draw(0, 10, seeded()),
            ValueError,
            "`n_rows` and `n_samples` must be at least 1; got 0 and 10",
        ),
        (
            lambda: Gain().apply(torch.ones(3, 5), Gain().draw(2, 5, seeded())),
            ValueError,
            "`drawn` is for 2 rows; `waveform` has 3. Draw with n_rows=3",
        ),
        (
            lambda: Gain().apply(torch.ones(5), WhiteNoise().draw(1, 5, seeded())),
            ValueError,
            "`drawn` must come from Gain.draw; got that of 'WhiteNoise'",
        ),
        (lambda: Gain(gain_db=(3, 1)), ValueError, r"`gain_db` must be \(low, high\)"),
        (lambda: WhiteNoise(snr_db=(3, float("inf"))), ValueError, "finite width; got"),
        (lambda: WhiteNoise(snr_db=(-1000, -1000)), ValueError, "`snr_db` .* got .-1000, -1000"),
        (lambda: Gain(gain_db=(1000, 1000)), ValueError, "`gain_db` .* high <= 200"),
        (
            lambda: Gain()(np.ones(5, dtype=np.float32), generator=seeded()),
            TypeError,
            "`waveform` must be a torch.Tensor; got ndarray. Convert an array: torch.from_numpy",
        ),
        (lambda: RandomApply(Gain(), p=1.5), ValueError, "`p` must be between 0 and 1; got 1.5"),
        (lambda: Compose([]), ValueError, "at least one augmentation; got none"),
        (lambda: Compose([Gain]), TypeError, "A class needs its parentheses"),
        (lambda: OneOf([Gain()], weights=[1, 2]), ValueError, "`weights` must be 1 numbers >= 0"),
    ],
)
def test_errors_say_what_and_how(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomEqualizer(n_points=1), "`n_points` must be at least 2; got 1"),
        (
            lambda: RandomBandLimit(high_hz=(3000.0, 9000.0)),
            r"`high_hz` must be .* <= 8000.*got \(3000.0, 9000.0\)",
        ),
        (lambda: RandomBandLimit(low_hz=(0.0, 4000.0)), "`low_hz` must be .* <= 3000"),
        (lambda: Clipping(below_peak_db=(-1.0, 3.0)), "`below_peak_db` must be .* 0 <= low"),
        (lambda: Clipping(soft_p=-1), "`soft_p` must be between 0 and 1; got -1"),
        (lambda: AutomaticGain(time_s=(0.0, 1.0)), "`time_s` must be .* 0.001 <= low"),
        (lambda: AutomaticGain(strength=(0.0, 2.0)), "`strength` must be .* <= 1"),
        (lambda: PacketLoss(share=(0.0, 2.0)), "`share` must be .* <= 1"),
        (lambda: Gaps(duration_s=(-1.0, 2.0)), "`duration_s` must be .* 0 <= low"),
        (lambda: SpeechCoder(n_pulses=(0, 5)), "`n_pulses` must be .* 1 <= low"),
        (lambda: RecordedNoise(clips=[]), "`clips` must hold at least one recording; got none"),
        (
            lambda: RecordedNoise(clips=[torch.ones(2, 9)]),
            r"`clips` must be float tensors \(time,\).*of torch.float32 and shape \(2, 9\)",
        ),
        (lambda: RandomBandLimit(high_hz=(float("nan"), 9.0)), "`high_hz` must be .*got .nan"),
        (lambda: RandomRoom(decay_s=(0.0, 0.5)), "`decay_s` must .*got"),
        (lambda: RandomSpeed(percent=(40, 110)), "`percent` must be .* 50 <= low <= high <= 200"),
        (lambda: transcode(torch.ones(9), "amr"), "`codec` must be one that .* mu-law.*got 'amr'"),
        (
            lambda: transcode(torch.ones(9), "gsm", compression_level=0.5),
            "`compression_level` must be None but for mp3, vorbis, opus, .*; got 0.5 for 'gsm'",
        ),
        (
            lambda: transcode(torch.ones(9), "vorbis", compression_level=2),
            "`compression_level` must be between 0 and 1; got 2",
        ),
        (lambda: Codec(codecs=("amr",)), r"`codecs` must be names among mu-law.*got \('amr',\)"),
        (lambda: Codec(codecs=()), r"`codecs` must be names among mu-law.*got \(\)"),
        (lambda: RawBoost(9), "`algorithm` must be 1 to 8; got 9"),
        (lambda: ConvolutiveNoise(n_orders=0), "`n_orders` must be at least 1; got 0"),
        (lambda: CopySynthesis(detail=(0.0, 1.5)), r"`detail` must be \(low, high\)"),
    ],
)
def test_errors_of_each_augmentation(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_codecs_refuse_what_would_crash_them(value):
    waveform = speech(1, 4000)
    waveform[0, 7] = value
    with pytest.raises(ValueError, match="must be finite; got 1 NaN or infinite of 4000 samples"):
        Codec(codecs=CODECS)(waveform, generator=seeded())


@pytest.mark.parametrize("scale", [1e-25, 1e-30, 1e20])
def test_noise_follows_the_level_however_quiet(scale):
    waveform = speech(2, 4000)
    for augment in (WhiteNoise(), StationaryNoise(), RecordedNoise(clips=CLIPS)):
        drawn = augment.draw(2, 4000, seeded())
        expected = augment.apply(waveform, drawn)
        scaled = augment.apply(waveform * scale, drawn) / scale
        assert torch.allclose(scaled, expected, rtol=1e-4, atol=1e-5)

"""The scorer on arrays: what a score is, whatever the audio looks like."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly
from torch import nn

from asvspoof_cm._util import resolve_device
from asvspoof_cm.audio import NOTHING_TO_JUDGE, InputSettings, tta_crops
from asvspoof_cm.calibration import Calibration, Verdict, decide, probability
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.labels import BONAFIDE, LABEL_NAMES, SPOOF
from asvspoof_cm.metrics import DetectionCosts
from asvspoof_cm.models import AASIST, TFPARN, AASISTConfig, RawNet2, TFPARNConfig
from asvspoof_cm.scorer import Scorer, StreamingScorer
from asvspoof_cm.scorer.scorer import run_rows

SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)


def peak_normalize(waveform):
    return waveform / waveform.abs().amax(dim=-1, keepdim=True)


class Spy(nn.Module):
    """Logits that depend on every sample and on their order; keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def forward(self, waveform):
        self.batches.append(waveform.clone())
        place = torch.linspace(0.5, 1.5, waveform.shape[-1])
        return torch.stack([waveform.abs().mean(1), (waveform * place).mean(1)], dim=1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return TFPARN(SMALL).eval()


@pytest.fixture(scope="module")
def scorer(model):
    return Scorer(model, device="cpu")


def speech(seconds, seed=0, rate=16000):
    """A tone with slow level changes and some noise, of a known peak below 1."""
    generator = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * (180 + 20 * seed) * t) * (0.3 + 0.2 * np.sin(2 * np.pi * 3 * t))
    return (tone + 0.05 * generator.standard_normal(len(t))).astype(np.float32)


def by_hand(model, waveform, n_crops=5, n_samples=64000):
    """The crops of the paper, each divided by its own peak, and their averaged logits."""
    crops = peak_normalize(tta_crops(torch.as_tensor(waveform), n_crops, n_samples))
    with torch.inference_mode():
        logits = model(crops).mean(dim=0)
    return (logits[BONAFIDE] - logits[SPOOF]).item()


# What a score is


@pytest.mark.parametrize("seconds", [0.7, 1, 3.1, 4, 4.0001, 7.5, 20])
def test_score_is_the_papers_tta(scorer, model, seconds):
    waveform = speech(seconds)
    assert scorer.score(waveform) == pytest.approx(by_hand(model, waveform), abs=1e-5)


@pytest.mark.parametrize("make", [lambda: AASIST(AASISTConfig.light()), RawNet2])
def test_other_models(make):
    torch.manual_seed(0)
    model = make().eval()
    waveform = speech(4.5)
    scorer = Scorer(model, device="cpu", n_crops=2)
    assert scorer.score(waveform) == pytest.approx(by_hand(model, waveform, 2), abs=1e-5)


def test_one_crop_is_the_centre():
    spy = Spy()
    scorer = Scorer(spy, device="cpu", n_crops=1)
    scorer.score(np.arange(1, 96001, dtype=np.float64))
    (batch,) = scorer.model.batches
    torch.testing.assert_close(batch[0] * 80000, torch.arange(16001.0, 80001.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("seconds", "n_distinct"), [(4, 1), (2, 4), (1, 4), (3, 5), (9, 5)])
def test_identical_crops_are_computed_once(seconds, n_distinct):
    scorer = Scorer(Spy(), device="cpu")
    result = scorer.score_file(speech(seconds))
    assert sum(map(len, scorer.model.batches)) == n_distinct
    assert (len(result.crop_scores), len(set(result.crop_scores))) == (5, n_distinct)
    assert result.score == pytest.approx(np.mean(result.crop_scores), abs=1e-6)
    assert result.score == pytest.approx(by_hand(Spy(), speech(seconds)), abs=1e-6)


def test_crops_fill_batches_across_utterances():
    scorer = Scorer(Spy(), device="cpu", batch_size=4)
    scorer.score_batch([speech(s) for s in (4, 9, 2, 4, 4, 7)])
    assert [len(batch) for batch in scorer.model.batches] == [4, 4, 4, 4, 1]


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_batches_and_order_do_not_change_scores(model, batch_size):
    waveforms = [speech(s, seed) for seed, s in enumerate((1, 4, 12.3, 0.2, 4, 6.5))]
    expected = [by_hand(model, waveform) for waveform in waveforms]
    scorer = Scorer(model, device="cpu", batch_size=batch_size)
    np.testing.assert_allclose(scorer.score_batch(waveforms), expected, atol=1e-5)
    np.testing.assert_allclose(scorer.score_batch(waveforms[::-1]), expected[::-1], atol=1e-5)


@pytest.mark.parametrize("normalization", ["crop", "utterance", "none"])
def test_crops_have_the_level_that_the_model_wants(normalization):
    spy = Spy()
    spy.input, spy.meta = InputSettings(normalization=normalization, n_crops=2), {}
    scorer = Scorer(spy, device="cpu")
    waveform = torch.cat([torch.full((64000,), 0.2), torch.full((64000,), 0.8)])
    scorer.score(waveform)
    level = {"crop": (1.0, 1.0), "utterance": (0.25, 1.0), "none": (0.2, 0.8)}[normalization]
    (batch,) = scorer.model.batches
    torch.testing.assert_close(batch[:, 0], torch.tensor(level))


def test_a_model_at_another_rate_with_crops_of_another_length(model):
    spy = Spy()
    spy.input, spy.meta = InputSettings(sample_rate=8000, crop_s=1.0), {}
    scorer = Scorer(spy, device="cpu")
    result = scorer.score_file(speech(2), 16000)
    assert (result.duration_s, result.resampled_from) == (2.0, 16000)
    assert scorer.model.batches[0].shape == (5, 8000)
    assert [w.end_s for w in scorer.timeline(speech(2), 16000)] == [1.0, 2.0]
    short = Scorer(model, device="cpu", crop_s=1.5)
    expected = by_hand(model, speech(3.1), n_samples=24000)
    assert short.score(speech(3.1)) == pytest.approx(expected, abs=1e-5)
    assert short.settings() != Scorer(model, device="cpu").settings()


def test_the_level_does_not_matter(scorer):
    waveform = speech(5)
    expected = scorer.score(waveform)
    for gain in (1e-6, 0.1, 1e4, 1e30):
        assert scorer.score(waveform * np.float32(gain)) == pytest.approx(expected, abs=1e-5)


def test_the_unit_of_a_score(model):
    waveform = speech(6)
    with torch.inference_mode():
        logits = model(peak_normalize(tta_crops(torch.tensor(waveform)))).mean(dim=0).double()
    difference = (logits[BONAFIDE] - logits[SPOOF]).item()
    llr = 2 * difference - 1
    calibrated = copy.deepcopy(model)
    calibrated.meta = {"calibration": Calibration(scale=2.0, offset=-1.0).as_dict()}
    for made, options, unit, score in (
        (model, {}, "log-odds", difference),
        (calibrated, {}, "llr", llr),
        (calibrated, {"calibration": None}, "log-odds", difference),
        (calibrated, {"score": "log-odds"}, "log-odds", difference),
        (model, {"calibration": Calibration(scale=2.0, offset=-1.0)}, "llr", llr),
    ):
        scorer = Scorer(made, device="cpu", **options)
        result = scorer.score_file(waveform)
        assert (result.unit, scorer.unit, scorer.settings()["score"]) == (unit,) * 3
        assert unit in repr(scorer)
        assert result.score == pytest.approx(score, abs=1e-5)
        assert result.as_dict()["unit"] == unit
        (window,) = StreamingScorer(scorer).push(waveform[:64000])
        assert scorer.timeline(waveform)[0].unit == window.unit == unit
        assert window.score == pytest.approx(scorer.score(waveform[:64000]), abs=1e-5)
        expected = None if scorer.calibration is None else pytest.approx(llr, abs=1e-5)
        assert result.llr == expected


def test_a_calibration_for_other_scores_warns(model, tmp_path):
    scorer = Scorer(model, device="cpu", calibration=Calibration(scale=2.0))
    again = Calibration(scale=2.0, fitted_for=scorer.conditions())  # it would be applied twice
    with pytest.warns(UserWarning, match="fitted for score 'llr', not 'log-odds'"):
        Scorer(model, device="cpu", calibration=again)
    stored = {"kind": "affine", "scale": 2.0, "offset": 1.0, "knots": []}  # as of version 0.1.0
    save_checkpoint(tmp_path / "a.pt", model, calibration=stored)
    Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu")
    for options, message in (
        ({"n_crops": 1}, r"fitted for n_crops 5, not 1: log-likelihood"),
        ({"crop_s": 1.5}, r"fitted for crop_s 4\.0, not 1\.5"),
        ({"precision": "bf16"}, r"fitted for precision 'fp32', not 'bf16'"),
    ):
        with pytest.warns(UserWarning, match=message) as caught:
            Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu", **options)
        assert len(caught) == 1


def test_probability_and_verdict(model):
    calibration = Calibration(scale=3.0, offset=0.2)
    result = Scorer(model, device="cpu", calibration=calibration).score_file(speech(2))
    assert result.probability(0.3) == pytest.approx(float(probability(result.llr, 0.3)))
    for costs in (DetectionCosts(), DetectionCosts(p_spoof=0.999, c_miss=1.0, c_fa=1000.0)):
        assert result.verdict(costs) == LABEL_NAMES[int(decide(result.llr, costs))]
    assert result.verdict(DetectionCosts(p_spoof=0.999, c_miss=1.0, c_fa=1000.0)) == "spoof"
    uncalibrated = Scorer(model, device="cpu").score_file(speech(2))
    for ask in (uncalibrated.probability, uncalibrated.verdict):
        with pytest.raises(ValueError, match="needs a calibrated score"):
            ask()


def test_bf16_is_close(model, scorer):
    waveform = speech(6)
    score = Scorer(model, device="cpu", precision="bf16").score(waveform)
    assert score == pytest.approx(scorer.score(waveform), abs=0.05)
    assert score != scorer.score(waveform)


def test_embedding_is_the_average_over_crops(scorer, model):
    waveform = speech(2)
    with torch.inference_mode():
        expected = model.embed(peak_normalize(tta_crops(torch.tensor(waveform)))).mean(dim=0)
    np.testing.assert_allclose(scorer.embed(waveform), expected, atol=1e-5)
    with pytest.raises(ValueError, match="must have `embed`; Spy gives logits only"):
        Scorer(Spy(), device="cpu").embed(speech(1))


def test_logits_of_their_own(model, scorer):
    assert scorer.logits([]).shape == (0, 2)
    crops = [speech(4), speech(4, seed=1)]
    with torch.inference_mode():
        expected = model(torch.tensor(np.stack(crops)))
    np.testing.assert_allclose(scorer.logits(crops), expected, atol=1e-5)


# The forward loop


def run_batches(function, batches, *, device, precision="fp32"):
    items = ((None, batch) for batch in batches)
    options = {"device": device, "precision": precision, "batch_size": None}
    for _, rows in run_rows(lambda batch: {"": function(batch)}, items, **options):
        yield torch.stack([row[""] for row in rows])


def test_the_loop_gives_the_function_itself():
    """In order, without gradients and in float32."""
    weight = torch.ones(1, requires_grad=True)
    waveforms = torch.arange(20.0).reshape(5, 4)
    batches = waveforms.split(2)
    found = torch.cat([*run_batches(lambda x: x.double() * weight, batches, device="cpu")])
    assert torch.equal(found, waveforms)
    assert found.dtype == torch.float32
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_the_loop_under_autocast(precision, dtype):
    seen = []

    def function(batch):
        product = batch @ torch.ones(4, 2)
        seen.append(product.dtype)
        return product

    (found,) = run_batches(function, [torch.ones(3, 4)], device="cpu", precision=precision)
    assert seen == [dtype]
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.full((3, 2), 4.0))


def test_results_come_one_batch_late():
    """So that a GPU computes the next batch while the last one's result is fetched."""
    events = []

    def batches():
        for k in range(3):
            events.append(f"read {k}")
            yield torch.full((1, 1), float(k))

    def function(batch):
        events.append(f"run {batch.item():g}")
        return batch

    found = run_batches(function, batches(), device="cpu")
    events.extend(f"got {result.item():g}" for result in found)
    expected = "read 0, run 0, read 1, run 1, got 0, read 2, run 2, got 1, got 2"
    assert ", ".join(events) == expected


def test_on_cuda_batches_are_pinned_and_nothing_waits_before_the_result(monkeypatch):
    """The same code with a device that only writes down what it is asked for."""
    asked = []

    class Batch:
        def pin_memory(self):
            asked.append("pin")
            return self

        def to(self, place, non_blocking):
            asked.append(f"to {place.type}, non_blocking={non_blocking}")
            return torch.ones(2, 4)

    class Event:
        def __init__(self, place):
            assert place.type == "cuda"

        def record(self):
            asked.append("record")

        def synchronize(self):
            asked.append("wait")

    def function(batch):
        asked.append("run")
        return {"logits": batch[:, :2]}

    monkeypatch.setattr(torch, "from_numpy", lambda _: Batch())
    monkeypatch.setattr(torch, "Event", Event)
    items = [(k, np.ones((2, 4), np.float32)) for k in range(2)]
    options = {"device": "cuda", "precision": "fp32", "batch_size": 2}
    for tag, rows in run_rows(function, items, **options):
        asked.append(f"result {tag} of {len(rows)}")
    started = ["pin", "to cuda, non_blocking=True", "run", "record"]
    ends = [f"{word}{k} of 2" if word else "wait" for k in range(2) for word in ("", "result ")]
    assert asked == [*started, *started, *ends]


# What it does to the model, and what others do to it


def test_the_model_is_left_alone(model):
    ours = copy.deepcopy(model).train()
    before = copy.deepcopy(ours.state_dict())
    scorer = Scorer(ours, device="cpu")
    expected = Scorer(model, device="cpu").score(speech(5))
    assert scorer.score(speech(5)) == pytest.approx(expected, abs=1e-6)
    assert ours.training
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[name])
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert scorer.score(speech(5)) == pytest.approx(expected, abs=1e-6)


NOTHING_GLOBAL = """
import os, random, sys, warnings
hooks = []
os.register_at_fork = lambda **given: hooks.append(given)
import numpy, torch
from asvspoof_cm.models import TFPARN
def state():
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            str(torch.get_rng_state()), random.getstate(), str(numpy.random.get_state()),
            list(warnings.filters), numpy.geterr(), len(hooks))
model = TFPARN()
from asvspoof_cm import Scorer
before = state()
scorer = Scorer(model, device="cpu")
scorer.score(numpy.ones(9000))
sys.exit(before != state())
"""


def test_constructing_and_scoring_change_nothing_global():
    assert subprocess.run([sys.executable, "-c", NOTHING_GLOBAL], check=False).returncode == 0


def test_threads_share_a_scorer(scorer):
    waveforms = [speech(1 + k, seed=k) for k in range(4)]
    expected = [scorer.score(waveform) for waveform in waveforms]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda w: [scorer.score(w) for _ in range(5)], waveforms))
    for scores, score in zip(got, expected, strict=True):
        np.testing.assert_allclose(scores, score, atol=1e-5)


def test_gradients_are_off_and_nothing_is_printed(scorer, capfd):
    waveform = torch.tensor(speech(1), requires_grad=True)
    assert scorer.score(waveform) == pytest.approx(scorer.score(speech(1)), abs=1e-6)
    assert capfd.readouterr() == ("", "")


def test_from_checkpoint(model, scorer, tmp_path):
    short = copy.deepcopy(model)
    short.input = InputSettings(crop_s=1.5)
    calibration = Calibration(scale=2.0, offset=0.5)
    save_checkpoint(tmp_path / "m.pt", short, calibration=calibration.as_dict())
    loaded = Scorer.from_checkpoint(tmp_path / "m.pt", device="cpu")
    assert (loaded.input.crop_s, loaded.calibration.scale, loaded.unit) == (1.5, 2.0, "llr")
    raw = Scorer.from_checkpoint(tmp_path / "m.pt", device="cpu", calibration=None, crop_s=4.0)
    assert raw.score(speech(3)) == pytest.approx(scorer.score(speech(3)), abs=1e-6)


def test_one_model_has_one_hash(model, tmp_path):
    save_checkpoint(tmp_path / "m.pt", model)
    stored = torch.load(tmp_path / "m.pt", weights_only=True)["sha256"]
    loaded = Scorer.from_checkpoint(tmp_path / "m.pt", device="cpu", batch_size=7)
    assert loaded.settings() == Scorer(model, device="cpu").settings()
    assert loaded.settings()["sha256"] == stored
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier[0].bias[0] += 1e-6
    assert Scorer(other, device="cpu").settings()["sha256"] != stored


def test_any_function_of_waveforms_is_a_model():
    def first_samples(waveform):
        return waveform[:, :2]

    scorer = Scorer(first_samples, n_crops=1)
    assert scorer.score(np.array([0.25, 1.0])) == pytest.approx(-0.75)
    with pytest.raises(ValueError, match='`precision` "fp32" for a model that is not a torch'):
        Scorer(lambda waveform: waveform, precision="bf16")


# Audio of every kind


@pytest.mark.parametrize(
    ("dtype", "full_scale", "offset", "tolerance"),
    [
        ("int8", 128, 0, 0.02),
        ("int16", 32768, 0, 1e-3),
        ("int32", 2**31, 0, 1e-5),
        ("int64", 2**31, 0, 1e-5),
        ("uint8", 128, 128, 0.02),
        ("float64", 1, 0, 1e-5),
        ("float16", 1, 0, 0.01),
        ("bfloat16", 1, 0, 0.05),
    ],
)
def test_dtypes(scorer, dtype, full_scale, offset, tolerance):
    waveform = speech(2)
    scaled = waveform.astype(np.float64) * (full_scale if "float" in dtype else full_scale - 1)
    scaled = torch.from_numpy(scaled if "float" in dtype else scaled.round() + offset)
    scaled = scaled.to(getattr(torch, dtype))
    expected = pytest.approx(scorer.score(waveform), abs=tolerance)
    assert scorer.score(scaled) == expected
    if dtype != "bfloat16":  # NumPy has none
        assert scorer.score(scaled.numpy()) == expected


@pytest.mark.parametrize("rate", [8000, 44100, 192000])
def test_rates(rate):
    """Of a sound within the band of both rates, against another resampler.

    By a model without a logarithm: images 80 dB down are all that a log-Mel has in empty bands.
    """
    scorer = Scorer(Spy(), device="cpu", n_crops=1)
    waveform = np.cos(2 * np.pi * 440 * np.arange(6 * rate) / rate)
    result = scorer.score_file(waveform, rate)
    assert result.resampled_from == rate
    assert result.duration_s == pytest.approx(6.0, abs=1e-3)
    divisor = np.gcd(rate, 16000)
    other = resample_poly(waveform, 16000 // divisor, rate // divisor, window=("kaiser", 12.0))
    assert result.score == pytest.approx(scorer.score(other), abs=1e-3)


@pytest.mark.parametrize(
    ("waveform", "warnings"),
    [
        (np.ones(1), (NOTHING_TO_JUDGE, "constant", "clipped", "shorter than 1 s")),
        (speech(0.005), (NOTHING_TO_JUDGE, "shorter than 1 s")),
        (speech(0.49), (NOTHING_TO_JUDGE, "shorter than 1 s")),
        (speech(0.5), ("shorter than 1 s",)),
        (np.zeros(64000), (NOTHING_TO_JUDGE, "silent")),
        (np.full(32000, 0.3), (NOTHING_TO_JUDGE, "constant")),
        (np.full(32000, 1e-5), (NOTHING_TO_JUDGE, "silent")),
        (np.where(np.arange(80000) % 100 < 50, 1.0, -1.0), ("clipped",)),
        (np.clip(3 * speech(5), -1, 1), ("clipped",)),
        (speech(5), ()),
        (speech(80), ()),
        (speech(80.1), ("the crops hold 20 of 80 s: see timeline",)),
    ],
)
def test_warnings(scorer, waveform, warnings):
    result = scorer.score_file(waveform)
    assert np.isfinite(result.score)
    assert result.warnings == warnings
    assert result.duration_s == len(waveform) / 16000


def test_a_verdict_abstains_without_speech():
    scorer = Scorer(Spy(), device="cpu", calibration=Calibration(scale=1.0, offset=50.0))
    for waveform in (np.zeros(32000), np.full(32000, 0.3), speech(0.4)):
        result = scorer.score_file(waveform)
        assert not result.has_speech
        assert result.verdict() is Verdict.ABSTAIN
        assert result.as_dict()["verdict"] == "abstain"
        assert result.probability(prior=0.3) == pytest.approx(0.7)
    heard = scorer.score_file(speech(0.6))
    assert heard.has_speech
    assert heard.verdict() is Verdict.BONAFIDE
    assert heard.probability(prior=0.3) > 0.99


def with_samples(bad, n=2):
    waveform = speech(2)
    waveform[5 : 5 + n] = bad
    return waveform


NOT_A_RATE = "`sample_rate` must be a whole number of Hz from 1,000 to 768,000; got"
NO_LOGITS = r"`model` must map waveforms .* to logits \(batch, 2\), .* \(1, 2\) here; got"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        *(
            ([np.zeros(s)], ValueError, "at least one sample; got shape")
            for s in (0, (2, 0), (0, 5))
        ),
        ([torch.empty(0)], ValueError, "`waveform` must hold at least one sample; got shape"),
        *(
            ([with_samples(bad)], ValueError, "2 of its 32000 samples are NaN or infinite")
            for bad in (np.nan, np.inf, -np.inf)
        ),
        ([np.array([1e300, 0.0])], ValueError, "1 of its 2 samples are too large for float32"),
        ([np.zeros((16000, 2))], ValueError, r"got \(16000, 2\). Did you pass \(time, channels\)"),
        ([np.zeros((50, 1))], ValueError, r"got \(50, 1\). Did you pass \(time, channels\)"),
        *(
            ([np.zeros(s)], ValueError, r"have shape \(time,\) or \(channels, time\); got")
            for s in ((), (1, 2, 100))
        ),
        *(
            ([np.ones(100).astype(dtype)], TypeError, "hold floats, signed integers or uint8")
            for dtype in ("uint16", "bool", "complex64", "str")
        ),
        (["a.wav"], FileNotFoundError, "a.wav"),
        ([np.ma.masked_equal(speech(1), 0)], TypeError, "`waveform` must not be masked"),
        *(
            ([np.zeros(100), rate], ValueError, NOT_A_RATE)
            for rate in (0, -8000, 44100.5, np.nan, np.inf, 16, 999, 768_001, True, "16000", None)
        ),
    ],
)
def test_what_cannot_be_scored(arguments, error, message):
    with pytest.raises(error, match=message):
        Scorer(Spy(), device="cpu").score(*arguments)


@pytest.mark.parametrize(
    ("model", "came"),
    [
        (lambda w: (w[:, :2], w), "tuple"),
        (lambda w: w[:, :1], r"\(1, 1\)"),
        (lambda w: w[:, 0], r"\(1,\)"),
        (lambda w: w[:, :2].numpy(), "ndarray"),
    ],
)
def test_what_is_no_model(model, came):
    with pytest.raises(TypeError, match=NO_LOGITS + " " + came):
        Scorer(model, n_crops=1).score(speech(2))


@pytest.mark.parametrize("n_before", [1, 160, 48_000])
def test_digital_silence_around_it_does_not_matter(scorer, n_before):
    """Crops are cut where there is sound: three seconds of zeros before moved a score by 2.8."""
    waveform = np.concatenate([[0.3], speech(5)[1:-1], [0.3]])
    quiet = np.zeros(n_before), np.full(77, 2.0**-16)
    padded = scorer.score(np.concatenate([quiet[0], waveform, quiet[1]]))
    assert padded == pytest.approx(scorer.score(waveform), abs=1e-5)


def test_channels_and_arrays_that_may_not_be_written(scorer):
    channels = np.stack([speech(2, seed) for seed in range(6)])
    expected = scorer.score(channels.mean(axis=0))
    channels.flags.writeable = False
    assert scorer.score(channels) == pytest.approx(expected, abs=1e-5)
    assert scorer.score(np.zeros((64, 100))) == pytest.approx(scorer.score(np.zeros(100)))


FORK = """
import os, sys, numpy as np, torch
from asvspoof_cm.models import TFPARN
from asvspoof_cm.scorer import Scorer
torch.set_num_threads(2)
scorer = Scorer(TFPARN(), device="cpu")
waveform = np.random.default_rng(0).standard_normal(64000)
before = scorer.score(waveform)
child = os.fork()
if child == 0:
    os._exit(abs(scorer.score(waveform) - before) > 1e-4)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_scores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert subprocess.run([sys.executable, "-c", FORK], timeout=600, check=False).returncode == 0


def test_a_batch(scorer):
    """At another rate; and its errors say which is bad."""
    with pytest.raises(ValueError, match=r"`waveforms\[1\]`: `waveform` must be finite"):
        scorer.score_batch([speech(1), np.array([np.nan]), speech(1)])
    with pytest.raises(ValueError, match=r"`waveforms\[0\]`: `waveform` must hold floats"):
        scorer.score_batch([np.array(["a"])])
    waveforms = [speech(1, rate=44100), speech(2, rate=44100)]
    expected = [scorer.score(waveform, 44100) for waveform in waveforms]
    np.testing.assert_allclose(scorer.score_batch(waveforms, 44100), expected, atol=1e-5)
    assert scorer.score_batch([]).shape == (0,)


def test_a_score_that_is_not_finite_is_an_error():
    scorer = Scorer(lambda waveform: torch.full((len(waveform), 2), torch.nan))
    with pytest.raises(ValueError, match=r"can't be scored: the model's logits are not finite"):
        scorer.score(speech(1))
    with pytest.raises(ValueError, match=r"`waveforms\[0\]`: the model's logits are not finite"):
        scorer.score_batch([speech(1)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_s": 0.0}, "`crop_s` must be between 6.25e-05 and 3600; got 0.0"),
        ({"n_crops": 0}, "`n_crops` must be a whole number of at least 1; got 0"),
        ({"batch_size": 2.5}, "`batch_size` must be a whole number of at least 1; got 2.5"),
        ({"score": "probability"}, "`score` must be one of"),
        ({"precision": "fp8"}, "`precision` must be one of"),
        ({"score": "llr"}, '`calibration` must be given with score="llr"; the model brings none'),
    ],
)
def test_wrong_options(model, options, message):
    with pytest.raises(ValueError, match=message):
        Scorer(model, **options)


def test_automatic_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device().type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device().type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert resolve_device() == torch.device("cuda", 0)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert resolve_device() == torch.device("cuda", 2)

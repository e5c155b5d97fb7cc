"""CosineHead: its logits are cosines, and it is a model like the others."""

import pytest
import torch
from torch.nn import functional

from asvspoof_cm import Scorer, load_checkpoint, save_checkpoint
from asvspoof_cm.losses import am_softmax_loss, oc_softmax_loss, p2sgrad_loss
from asvspoof_cm.models import CosineHead, CosineHeadConfig, build_model

SMALL = {
    "TFPARN": {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16},
    "AASIST": {},
    "RawNet2": {"n_channels": 16, "d_gru": 16, "d_embedding": 16},
}


def small(name="TFPARN", **settings):
    return CosineHead(CosineHeadConfig(model=name, model_config=SMALL[name], **settings))


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_scaled_cosines(name):
    model = small(name, scale=7.0).eval()
    waveform = torch.randn(3, 16000)
    embedding = model.embed(waveform)
    torch.testing.assert_close(embedding, model.body.embed(waveform))
    expected = 7 * functional.cosine_similarity(embedding[:, None], model.vectors[None], dim=-1)
    torch.testing.assert_close(model(waveform), expected)


def test_one_vector_leaves_the_spoof_logit_at_zero():
    model = small(n_vectors=1).eval()
    logits = model(torch.randn(3, 16000))
    assert logits.shape == (3, 2)
    assert not logits[:, 0].any()
    assert logits[:, 1].all()


def test_logits_stay_exact_under_autocast():
    model = small().eval()
    embedding = model.embed(torch.randn(4, 16000)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        inside = model.classify(embedding)
    torch.testing.assert_close(inside, model.classify(embedding))


@pytest.mark.parametrize("loss", [am_softmax_loss, oc_softmax_loss, p2sgrad_loss])
def test_margin_losses_separate_two_sounds(loss):
    torch.manual_seed(0)
    model = small(n_vectors=1 if loss is oc_softmax_loss else 2)
    optimizer = torch.optim.AdamW(
        [p for group in model.parameter_groups() for p in group["params"]], lr=3e-3
    )
    labels = torch.arange(8) % 2
    waveform = torch.randn(8, 8000)
    waveform[labels == 1] = waveform[labels == 1].cumsum(dim=1) / 20  # dull noise is bona fide
    model.train()
    for _ in range(30):
        optimizer.zero_grad()
        loss(model(waveform), labels).backward()
        optimizer.step()
    logits = model.eval()(waveform)
    scores = (logits[:, 1] - logits[:, 0]).detach()
    assert scores[labels == 1].min() > scores[labels == 0].max()
    assert model.vectors.grad.any()


def test_it_is_saved_built_and_scored_like_any_model(tmp_path):
    model = small("RawNet2", n_vectors=1).eval()
    save_checkpoint(tmp_path / "cosine.pt", model)
    loaded = load_checkpoint(tmp_path / "cosine.pt")
    assert isinstance(loaded, CosineHead)
    assert loaded.config == model.config
    waveform = torch.randn(2, 16000)
    assert torch.equal(loaded(waveform), model(waveform))
    assert -20 <= Scorer(loaded, device="cpu").score(torch.randn(16000)) <= 20
    assert type(build_model("CosineHead", {"model": "RawNet2"}).body).__name__ == "RawNet2"


def test_the_frames_weigh_as_in_the_body():
    model = small().eval()
    waveform = torch.randn(2, 16000)
    attended = model.attend(waveform)
    assert torch.equal(attended.weights, model.body.attend(waveform).weights)
    assert torch.equal(attended.logits, model(waveform))


def test_it_takes_crops_of_the_lengths_that_its_body_takes():
    assert small("TFPARN").any_length
    assert not small("AASIST").any_length

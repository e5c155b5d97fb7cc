"""Score the clips of ``examples/audio`` with the checkpoint that comes with the package.

Run it with ``make demo``. It prints a line for each clip, and draws how the score runs along a
recording in which a person and a synthesizer take turns.
"""

from __future__ import annotations

import csv
import os
from itertools import accumulate
from pathlib import Path

import torch

from asvspoof_cm import BONAFIDE, Scorer, load_audio, plots
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.metrics import DetectionCosts

AUDIO = Path(os.path.relpath(Path(__file__).parent / "audio"))
OUT = Path("build/demo")
LABELS = ("spoof", "bonafide")
EVEN = DetectionCosts(p_spoof=0.5, c_miss=1.0, c_fa=1.0)


def main() -> None:
    """Print the table and write the pictures."""
    with (AUDIO / "clips.tsv").open() as file:
        clips = list(csv.DictReader(file, delimiter="\t"))
    scorer = Scorer.from_pretrained()
    scored = scorer.score_files(AUDIO / clip["file"] for clip in clips)

    print(f"{'clip':44}{'label':>10}{scorer.unit:>8}{'P(human)':>10}  verdict")
    wrong = {}
    for clip, found in zip(clips, scored, strict=True):
        if found.result is None:
            raise SystemExit(found.error)
        said = found.result.verdict(EVEN)
        probability = found.result.probability(EVEN.p_spoof)
        print(
            f"{found.name:44}{clip['label']:>10}{found.result.score:>+8.2f}"
            f"{probability:>10.3f}  {said}"
        )
        if said != clip["label"]:
            wrong[clip["file"]] = clip["source"]
    print("llr: calibrated log-likelihood ratio; P(human) and verdict: were half of all clips")
    print("synthetic and both errors equally bad.")
    print(f"{len(clips) - len(wrong)} of {len(clips)} right" + "; wrong:" * bool(wrong))
    for name, source in wrong.items():
        print(f"  {name} ({source})")
    if wrong:
        print("docs/model_card.md says which kinds it confuses, and how often.")

    right = [clip for clip in clips if clip["file"] not in wrong] or clips
    human = next(clip for clip in right if clip["label"] == LABELS[BONAFIDE])
    synthetic = next(clip for clip in right if clip["label"] != LABELS[BONAFIDE])
    waveforms = [load_audio(AUDIO / clip["file"]) for clip in (human, synthetic)]
    # A recording that changes hands: the human, the synthesizer, the human again.
    spliced = torch.cat([waveforms[0], waveforms[1], waveforms[0]])
    curve = scorer.timeline(spliced, window_s=1.0, hop_s=0.25)
    lengths_s = [len(waveform) / SAMPLE_RATE for waveform in waveforms]
    edges_s = [0.0, *accumulate([*lengths_s, lengths_s[0]])]
    names = [f"human: {human['file']}", f"synthetic: {synthetic['file']}", "the first again"]
    parts = list(zip(edges_s, edges_s[1:], names, strict=False))
    timeline = plots.timeline(curve, threshold=EVEN.threshold, truth=parts)
    plots.save_figure(timeline, OUT / "timeline.png")
    print(f"picture: {OUT / 'timeline.png'}")


if __name__ == "__main__":
    main()

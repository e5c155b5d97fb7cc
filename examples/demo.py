"""Score the clips of ``examples/audio`` with the checkpoint that comes with the package.

Run it with ``make demo``. It prints a line for each clip, and writes two pictures of one of them:
what the model looked at, and how the score runs along a longer recording.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import torch

from asvspoof_cm import BONAFIDE, Scorer, load_audio, plots
from asvspoof_cm.metrics import DetectionCosts

AUDIO = Path(os.path.relpath(Path(__file__).parent / "audio"))
OUT = Path("build/demo")
LABELS = ("spoof", "bonafide")
EVEN = DetectionCosts(p_spoof=0.5, c_miss=1.0, c_fa=1.0)


def main() -> None:
    """Print the table and write the pictures."""
    with (AUDIO / "clips.tsv").open() as file:
        clips = list(csv.DictReader(file, delimiter="\t"))
    scorer = Scorer.from_pretrained(score="llr")
    scored = scorer.score_files(AUDIO / clip["file"] for clip in clips)

    print(f"{'clip':44}{'label':>10}{'score':>8}{'P(human)':>10}  decision")
    wrong = []
    for clip, found in zip(clips, scored, strict=True):
        if found.result is None:
            raise SystemExit(found.error)
        decision = found.result.decision(EVEN)
        said = "no speech" if decision is None else LABELS[decision]
        probability = found.result.probability(EVEN.p_spoof)
        print(
            f"{found.path!s:44}{clip['label']:>10}{found.result.score:>+8.2f}"
            f"{probability:>10.3f}  {said}"
        )
        if said != clip["label"]:
            wrong.append(f"{clip['file']} ({clip['source']})")
    print("score: calibrated log-likelihood ratio; P(human) and decision: were half of all clips")
    print("synthetic and both errors equally bad. No clip or generator was in training.")
    print(f"{len(clips) - len(wrong)} of {len(clips)} right" + "; wrong:" * bool(wrong))
    for name in wrong:
        print(f"  {name}")
    if wrong:
        print("docs/model_card.md says which kinds it confuses, and how often.")

    human = next(clip for clip in clips if clip["label"] == LABELS[BONAFIDE])
    synthetic = next(clip for clip in clips if clip["label"] != LABELS[BONAFIDE])
    waveforms = [load_audio(AUDIO / clip["file"]) for clip in (human, synthetic)]
    attention = plots.attention(scorer.attention(waveforms[1]))
    attention.set_title(synthetic["file"], fontsize=9)
    plots.save_figure(attention, OUT / "attention.png")
    # A recording that changes hands: the human, the synthesizer, the human again.
    spliced = torch.cat([waveforms[0], waveforms[1], waveforms[0]])
    curve = scorer.timeline(spliced, window_s=1.0, hop_s=0.25)
    timeline = plots.timeline(curve, threshold=EVEN.threshold)
    title = f"{human['file']}, then {synthetic['file']}, then the first again"
    timeline.set_title(title, fontsize=9)
    timeline.set_ylabel("score (LLR)")
    plots.save_figure(timeline, OUT / "timeline.png")
    print(f"pictures: {OUT / 'attention.png'}, {OUT / 'timeline.png'}")


if __name__ == "__main__":
    main()

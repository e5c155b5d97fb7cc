"""A larger training part: several corpora as one, with vocoded copies of the first one's voices.

A copy shares the speaker, the words and the channel of its recording, so that nothing but the
vocoder tells the two apart: ``PYTHONPATH=recipes python -m minispoof.extend CORPUS --out DIR``.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.audio import load_audio
from asvspoof_cm.data import AudioFolder, read_protocol
from minispoof import vocoders
from minispoof.attacks import catalogue
from minispoof.clips import FOLDERS, write_flac
from minispoof.confounds import PROTOCOLS
from minispoof.randomness import generator
from minispoof.speech import Array
from minispoof.vocoders import Vocoder

__all__ = ["VOCODERS", "extend"]

VOCODERS: Final[Mapping[str, Vocoder]] = {
    "A03": vocoders.world,
    "A05": vocoders.linear_prediction,
    "A17": vocoders.melgan,
}
"""The vocoders of the train part that are not among the library's own augmentations."""

logger = logging.getLogger(__name__)


def extend(
    corpora: Sequence[Path], out: Path, *, copiers: Mapping[str, Vocoder] = VOCODERS, seed: int = 5
) -> Path:
    """Write the train parts of `corpora`, and one or two copies of each human clip of the first.

    What an interrupted call has written stays. A clip that a vocoder fails on is left out of it.

    Args:
        corpora: Folders in the layout of ASVspoof 5.
        out: The new one; it gets a train part only.
        copiers: Vocoders by the attack that their copies count as.
        seed: Of the choice of vocoders and of their noise.

    Returns:
        The new protocol.
    """
    folder = out / FOLDERS["T"]
    audio = [
        AudioFolder(read_protocol(corpus / PROTOCOLS["T"]), corpus / FOLDERS["T"])
        for corpus in corpora
    ]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (corpus, files) in enumerate(zip(corpora, audio, strict=True)):
        text = (corpus / PROTOCOLS["T"]).read_text(encoding="utf-8")
        lines = [line.split() for line in text.splitlines() if line.strip()]
        for index, row in enumerate(track(lines, description=str(corpus), unit="clip")):
            renamed = [row[0], f"{number}-{row[1]}", *row[2:]]
            target = folder / f"{renamed[1]}.flac"
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.copyfile(files.path(index), temporary)
            rows.append(renamed)
            if number == 0 and row[8] == "bonafide":
                rows.extend(_copies(renamed, target, copiers, seed))
    path = out / PROTOCOLS["T"]
    with atomic_path(path) as temporary:
        lines = (" ".join(row) + "\n" for row in rows)
        temporary.write_text("".join(lines), encoding="utf-8")
    return path


def _copies(
    row: Sequence[str], source: Path, copiers: Mapping[str, Vocoder], seed: int
) -> Iterator[list[str]]:
    rng = generator(seed, row[1])
    n_copies = int(rng.integers(1, min(2, len(copiers)) + 1))
    for attack in rng.choice(sorted(copiers), n_copies, replace=False):
        copy = [row[0], f"{row[1]}-{attack}", *row[2:7], attack, "spoof", *row[9:]]
        target = source.with_name(f"{copy[1]}.flac")
        try:
            if not target.exists():
                waveform = load_audio(source).numpy().astype(np.float64)
                noise = generator(seed, copy[1])
                _write(target, copiers[attack](waveform, noise)[: len(waveform)])
        except Exception as error:  # of whatever package the vocoder comes from
            logger.warning("%s: no copy by %s: %s", source.name, attack, error)
        else:
            yield copy


def _write(path: Path, waveform: Array) -> None:
    peak = np.abs(waveform).max()
    if not 1e-6 < peak < np.inf:
        raise ValueError(f"the vocoder returned a peak of {peak}")
    write_flac(path, waveform / peak)


def main() -> None:
    """Extend what the arguments name."""
    parser = argparse.ArgumentParser(prog="minispoof.extend", description=__doc__)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    used = [attack for attack in catalogue(sys.executable) if attack.name in VOCODERS]
    if missing := sorted({how for attack in used for how in attack.missing()}):
        parser.error(f"the vocoders need {', '.join(missing)}.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        path = extend(arguments.corpora, arguments.out, seed=arguments.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{path}: {read_protocol(path).counts()}")


if __name__ == "__main__":
    main()

"""A folder of human speech as a corpus of clips, ready for copies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import soundfile

from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.audio import AUDIO_EXTENSIONS
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES, SAMPLE_RATE
from manyvoices.clips import make_clip
from manyvoices.table import TABLE, Row, md5, write_table

_LARGE: Final = 16**8


def add_folder(
    folder: Path, out: Path, *, source: str | None = None, dev_share: float = 0.2
) -> tuple[list[Row], dict[str, str]]:
    """Make clips of the recordings below `folder`, and write their table.

    The first folder below `folder` names the speaker; a recording that lies in `folder` itself is a
    speaker of its own. Speakers are in one split each, by their name, so that a corpus can grow.

    Args:
        folder: Recordings of people, in any format that libsndfile reads.
        out: Gets ``audio/`` and ``corpus.tsv``.
        source: What to call it; None is the folder's name. Recordings from several places (a call
            centre, a podcast) are several sources: add each on its own.
        dev_share: The share of speakers that dev gets, about.

    Returns:
        The clips, and why other recordings are none, by path.

    Raises:
        FileNotFoundError: There is no recording below `folder`.
    """
    source = source or folder.resolve().name
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_EXTENSIONS)
    if not paths:
        raise FileNotFoundError(
            f"`folder` must hold recordings ({', '.join(AUDIO_EXTENSIONS)}); {folder} has none."
        )
    rows, problems = [], {}
    for path in track(paths, description=source, unit="recording"):
        inner = path.relative_to(folder)
        origin = inner.as_posix()
        speaker = inner.parts[0] if len(inner.parts) > 1 else inner.stem
        utterance = md5(f"{source}|{origin}")[:14]
        row = Row(
            utterance=utterance,
            path=f"audio/{utterance}.flac",
            label=LABEL_NAMES[BONAFIDE],
            generator=ABSENT,
            speaker=f"{source}:{speaker}",
            source=source,
            split="dev" if _place(f"{source}:{speaker}") < dev_share else "train",
            origin=origin,
        )
        if not (out / row.path).exists():
            try:
                samples = make_clip(path.read_bytes(), source + origin)
            except (ValueError, soundfile.LibsndfileError) as error:
                problems[origin] = str(error)
                continue
            with atomic_path(out / row.path) as temporary:
                soundfile.write(temporary, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        rows.append(row)
    write_table(out / TABLE, rows)
    return rows, problems


def _place(name: str) -> float:
    """Return a number between 0 and 1 that depends on the name alone."""
    return int(md5(name)[:8], 16) / _LARGE

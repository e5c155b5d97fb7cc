"""Damaged files: every reader must read or refuse them, whatever is in them.

    nice -n 19 python benchmarks/fuzz.py                  # 10,000 mutations per reader, with record
    python benchmarks/fuzz.py --only wav --n 200 --seed 3 --dry
    python benchmarks/fuzz.py --only wav --seed 3 --show 1234 > 1234.wav

A reader gets whole files that were mutated: bits, numbers and blocks of the bytes, and for formats
with checksums or structure also what they hold. It may return something, or raise a ValueError or
an OSError that names the file. Anything else is a finding: another exception, a warning, a crash,
more memory than `MEMORY` or more time than `LIMIT_S`. Mutation k of a seed is always the
same.

Each reader runs in a process of its own, which is replaced where it dies. The record is
``results/fuzz.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import soundfile
import torch
from pebble import ProcessExpired, ProcessPool

from asvspoof_cm.audio import AudioFile, InputSettings, load_audio, take_crops
from asvspoof_cm.augmentation.codecs import _Coder, _encode_av
from asvspoof_cm.checkpoint import save_checkpoint, stored_hash
from asvspoof_cm.data import find_audio, read_protocol, read_segments
from asvspoof_cm.export import _NO_HASH as NO_HASH, export_onnx
from asvspoof_cm.metrics import read_key, read_scores
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer
from harness import Row, resident, write_results

SCORER = Scorer(lambda waveforms: waveforms[:, :2])

MEMORY = 1 << 29
"""Bytes that a reader may allocate for a file of a few kilobytes."""

LIMIT_S = 30.0
"""Seconds that a reader may take for it."""

_KINDS = (ValueError, OSError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
DOCUMENTED = {kind.__name__: kind for kind in (*_KINDS, PermissionError)}
N_SHOWN = 3
SPEECH = np.random.default_rng(0).uniform(-0.5, 0.5, 16000).astype(np.float32)
SMALL = TFPARNConfig(d_model=8, n_layers=1, n_heads=2, d_feedforward=8, d_classifier=4, n_mels=8)

Mutator = Callable[[Sequence[bytes], random.Random], bytes]


# Mutations -------------------------------------------------------------------------------------

_NUMBERS = (0, 1, 2, 3, 7, 8, 15, 16, 64, 100, 127, 128, 255, 256, 999, 1000, 4096, 32767, 32768)
_NUMBERS += (65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**36, 2**63 - 1, 2**64 - 1)


def mutate_bytes(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Change a few bits, numbers or blocks; headers more often than the rest."""
    data = bytearray(rng.choice(seeds))

    def place() -> int:
        reach = len(data) if rng.random() < 0.4 else min(len(data), rng.choice((16, 64, 256)))
        return rng.randrange(reach)

    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not data:
            break
        match rng.randrange(10):
            case 0 | 1:
                data[place()] ^= 1 << rng.randrange(8)
            case 2:
                data[place()] = rng.randrange(256)
            case 3 | 4:
                size = rng.choice((2, 4, 4, 8))
                value = rng.choice(_NUMBERS) % (1 << 8 * size)
                at = place()
                number = value.to_bytes(size, rng.choice(("little", "big")))
                data[at : at + size] = number[: len(data) - at]
            case 5:
                del data[rng.randrange(len(data)) :]
            case 6:
                at = place()
                del data[at : at + rng.choice((1, 2, 4, 16, 100, 1000))]
            case 7:
                at = place()
                data[at:at] = data[at : at + rng.choice((1, 4, 30, 500))] * rng.choice((1, 2, 20))
            case 8:
                at = place()
                block = rng.randbytes(rng.choice((4, 32, 400)))
                data[at : at + len(block)] = block
            case _:
                other = rng.choice(seeds)
                data[place() :] = other[rng.randrange(len(other)) :]
    return bytes(data)


_WORDS = (
    *("", " ", "\t", ",", ";", '"', '""', "'", "\\", "|", "#", "-", "_", "=", "{}", "[]", "\0"),
    *("\r", "\n", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "\ufeff", "\u00a0", "é", "१", "𝟙"),
    *("0", "1", "-1", "0.5", "1_0", "1e5", "1e999", "nan", "inf", "-inf", "0x10", "9" * 20),
    *("None", "null", "true", "spoof", "bonafide", "bona-fide", "target", "nontarget", "label"),
    *("filename", "cm-score", "utterance", "path", "file", "speaker", "spk", "SPEAKER", "start"),
    *("..", "../x.wav", "/etc/passwd", "/dev/zero", "~", "x |", "a.wav", "x" * 5000),
)


def mutate_text(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Change words, lines, separators or the encoding; now and then the bytes."""
    if rng.random() < 0.2:
        return mutate_bytes(seeds, rng)
    lines = rng.choice(seeds).decode().split("\n")
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind == 0:
            lines.insert(at, rng.choice(lines))
        elif kind == 1:
            lines[at : at + 1] = []
        elif kind == 2:
            old, new = rng.choice("\t ,;\n"), rng.choice(("\t", " ", ",", ";", "", "\r\n", "  "))
            lines = "\n".join(lines).replace(old, new).split("\n")
        elif kind == 3:
            other = rng.choice(seeds).decode().split("\n")
            lines[at:] = other[rng.randrange(len(other)) :]
        elif kind in (4, 5):
            place = rng.randrange(len(lines[at]) + 1)
            rest = "" if rng.random() < 0.3 else lines[at][place:]
            lines[at] = lines[at][:place] + rng.choice(_WORDS) + rest
        else:
            separator = next((s for s in "\t,; " if s in lines[at]), " ")
            words = lines[at].split(separator)
            words[rng.randrange(len(words))] = rng.choice(_WORDS)
            lines[at] = separator.join(words)
        lines = lines or [""]
    codec = rng.choice(["utf-8"] * 12 + ["utf-8-sig", "latin-1", "utf-16"])
    return "\n".join(lines).encode(codec, errors="replace")


_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**6, 2**31, 2**63, 10**30, 0.5, -0.0, float("nan"), float("inf")),
    *("", "x", "TFPARN", "AASIST", "é" * 300, [], {}, [1, 2], {"a": {}}, ()),
)


def mutate_json(value: Any, rng: random.Random, share: float = 0.1) -> Any:
    """Return plain values with some of them replaced, renamed or gone."""
    if rng.random() < share:
        return rng.choice(_VALUES)
    if isinstance(value, dict):
        changed = {k: mutate_json(v, rng, share) for k, v in value.items()}
        if changed and rng.random() < share:
            del changed[rng.choice(list(changed))]
        if rng.random() < share:
            changed[rng.choice(["x", "", "format", "model", 3])] = rng.choice([1, "x", [], None])
        return changed
    if isinstance(value, list | tuple):
        return type(value)(mutate_json(v, rng, share) for v in value)
    return value


# Readers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A function that takes a file, whole files for it, and how they are damaged."""

    suffix: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    mutate: Mutator = mutate_bytes


def read_audio(path: Path) -> None:
    """Read as `load_audio` and as the scorer do."""
    load_audio(path)
    with AudioFile(path) as file:
        take_crops(file, InputSettings(crop_s=1.0))


def read_list(path: Path) -> None:
    """List what a list names, beside whose file there is audio, and read the first of it."""
    if not (place := path.with_name("a.wav")).exists():
        place.write_bytes(_audio("WAV", ("PCM_16",))[0])
    for entry in itertools.islice(find_audio([path]), 3):
        with entry.open(16000) as audio:
            take_crops(audio, InputSettings(crop_s=1.0))


def read_protocol_both(path: Path) -> None:
    """Read with labels, else without; a refusal of both is one."""
    try:
        read_protocol(path)
    except ValueError:
        read_protocol(path, require_labels=False)


def read_model(path: Path) -> None:
    """Load a checkpoint into a scorer and score with it."""
    Scorer.from_checkpoint(path, device="cpu").score(SPEECH, sample_rate=16000)


def read_onnx(path: Path) -> None:
    """Load an exported model into a scorer and score with it."""
    Scorer.from_onnx(path).score(SPEECH, sample_rate=16000)


def _audio(kind: str, subtypes: Sequence[str]) -> list[bytes]:
    rng = np.random.default_rng(0)
    made = []
    for (k, subtype), rate in itertools.product(enumerate(subtypes), (16000, 8000, 48000)):
        samples = 0.1 * rng.standard_normal((3000, 1 + (k + rate) % 2))
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format=kind, subtype=subtype)
        made.append(file.getvalue())
    return made


def av_seeds() -> list[bytes]:
    """Return what PyAV reads and libsndfile does not."""
    made = []
    for container, coder, rate in (
        *(("mp4", "aac", 16000), ("adts", "aac", 16000), ("webm", "libopus", 48000)),
        *(("asf", "wmav2", 16000), ("amr", "libopencore_amrnb", 8000), ("matroska", "flac", 16000)),
    ):
        file, bit_rate = io.BytesIO(), 12200 if container == "amr" else 32000
        _encode_av(file, SPEECH[: rate // 4], _Coder(container, coder, rate, (bit_rate,)), 0.0)
        made.append(file.getvalue())
    return made


def wav_seeds() -> list[bytes]:
    """Return WAVs of every subtype, extensible and 64-bit ones too."""
    subtypes = ("PCM_16", "PCM_24", "PCM_U8", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM", "GSM610")
    made = _audio("WAV", ("PCM_16", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM"))
    for kind, subtype in itertools.product(("WAVEX", "RF64", "W64"), subtypes[:4]):
        made += _audio(kind, (subtype,))[:1]
    return made


PROTOCOLS = (
    "D_0062 D_0000000001 F - - - AC1 A11 spoof -\nD_0461 D_190 M - - - - bonafide bonafide -\n",
    "T_4850 T_0000000000 F - A05 spoof\nT_4850 T_0000000001 F - bonafide bonafide\n",
    "LA_0069 LA_D_1047731 - - bonafide\nLA_0070 LA_D_1047732 - A01 spoof\n",
    "LA_0009 LA_E_9332881 alaw ita_tx A07 spoof notrim eval\n",
    "LA_0023 DF_E_2000011 nocodec asvspoof A14 spoof notrim progress traditional_vocoder - - - -\n",
    'file,speaker,label\n0.wav,Alec Guinness,spoof\n"a, b.wav",Ada,bona-fide\n',
    "path\tlabel\tnote\nsub/x y.flac\tspoof\t-\nz\tbonafide\té\n",
    "utterance,path,source,split,generator,label\nu1,a/u1.wav,s,train,-,bonafide\nu2,b,s,dev,G,spoof\n",
    "E_1\nE_2\nE_3\n",
)
SCORES = (
    "filename\tcm-score\nE_1\t0.5\nE_2\t-1\nE 3\t1e-3\n",
    "E_1 0.5\nE_2 -1\n",
    'filename,cm-score\nE_1,0.5\n"E, 2",-1\n',
    "filename;cm-score\nE_1;0.5\nE_2;-1\n",
    "spk\tfilename\tcm-score\tasv-score\tsasv-score\ns1\tE_1\t0.5\t-\t1\ns2\tE_1\t-1\t-\t2\n",
)
KEYS = (
    "E_1 bonafide\nE_2 spoof\n",
    "filename\tcm-label\nE_1\tbonafide\nE_2\tspoof\n",
    "spk\tfilename\tcm-label\tasv-label\ns1\tE_1\tbonafide\ttarget\ns1\tE_2\tspoof\tspoof\n",
)
LISTS = ("a.wav\nsub/b é.flac\n", "a.wav\n\n/x/b.wav\n")
TABLES = (
    'utterance,path\nu1,a.wav\n"u,2","sub/b é.flac"\n',
    "path;note\na.wav;x\n",
    "file\tlabel\na.wav\tspoof\n",
)
SEGMENTS = (
    "0.0 1.25 1\n1.25 2 0\n",
    "0.0\t1.5\tbonafide\n1.5\t2.0\tno speech\n",
    "SPEAKER a 1 0.0 1.5 <NA> <NA> bonafide <NA> <NA>\nSPEAKER a 1 1.5 1 <NA> <NA> spoof <NA>\n",
    "utterance,start,end,label\na,0,1.5,spoof\na,1.5,2,bonafide\nb,0,1,spoof\n",
)


def _encode(texts: Sequence[str]) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


def small_model() -> TFPARN:
    """Return a model of which thousands can be loaded."""
    torch.manual_seed(0)
    model = TFPARN(SMALL).eval()
    model.input = InputSettings(crop_s=1.0)
    return model


@cache
def checkpoint_seed() -> bytes:
    """Return the bytes of a small checkpoint with a calibration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        calibration = {"scale": 1.0, "offset": 0.0}
        known = {"calibration": calibration, "segments": {"enter": -2.0}, "notes": {"n": [1, 2]}}
        save_checkpoint(path, small_model(), **known)
        return path.read_bytes()


def mutate_checkpoint(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Damage the bytes, the pickle in a whole archive, or the values in a whole pickle.

    The hash inside would catch the last one, so it is made to fit.
    """
    kind = rng.random()
    if kind < 0.3:
        return mutate_bytes(seeds, rng)
    content = torch.load(io.BytesIO(seeds[0]), weights_only=True)
    del content["sha256"]
    if kind < 0.6:
        return _mutate_zip(_saved(content), rng)
    weights = dict(content.pop("state_dict"))
    content = mutate_json(content, rng, share=rng.choice((0.02, 0.1, 0.3)))
    if rng.random() < 0.5:
        weights = _mutate_weights(weights, rng)
    if isinstance(content, dict):
        content["state_dict"] = weights if rng.random() < 0.95 else mutate_json({"a": 1}, rng, 0.5)
        with suppress(Exception):  # of values that have no hash
            content["sha256"] = stored_hash(content)
    return _saved(content)


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _mutate_weights(weights: dict[str, Any], rng: random.Random) -> dict[Any, Any]:
    name = rng.choice(list(weights))
    tensor = weights[name]
    kind = rng.randrange(9)
    if kind == 0:
        del weights[name]
    elif kind == 1:
        weights[rng.choice(["x", "", 7])] = tensor
    else:
        weights[name] = [
            lambda: tensor.double(),
            lambda: tensor.to(torch.int8),
            lambda: torch.full_like(tensor, rng.choice([float("nan"), float("inf"), 1e38])),
            lambda: torch.zeros(1).expand(2**40),
            lambda: tensor.to_sparse(),
            lambda: tensor.to(torch.complex64),
            lambda: rng.choice([None, 1, "x", [], tensor[None]]),
        ][kind - 2]()
    return weights


def _mutate_zip(whole: bytes, rng: random.Random) -> bytes:
    """Damage one record of an archive and leave the archive whole."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(file, "w") as changed:
        records = [(info, archive.read(info)) for info in archive.infolist()]
        chosen = next(
            k for k, (info, _) in enumerate(records) if info.filename.endswith("data.pkl")
        )
        if rng.random() < 0.2:
            chosen = rng.randrange(len(records))
        for k, (info, content) in enumerate(records):
            new = mutate_bytes([content], rng) if k == chosen and content else content
            changed.writestr(info, new)
    return file.getvalue()


@cache
def onnx_seed() -> bytes:
    """Return the bytes of a small exported model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = small_model()
        model.meta = {"calibration": {"scale": 1.0, "offset": 0.0}}
        export_onnx(model, path)
        return path.read_bytes()


def mutate_onnx(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Damage the bytes, or what a whole model says about itself; mostly with a hash that fits."""
    if rng.random() < 0.1:
        return mutate_bytes(seeds, rng)
    import onnx

    proto = onnx.load_from_string(seeds[0])
    is_deep = rng.random() < 0.4
    for entry in proto.metadata_props:
        if entry.key.endswith("sha256"):
            entry.value = NO_HASH.decode()
        elif is_deep:
            content = mutate_json(json.loads(entry.value), rng, share=rng.choice((0.1, 0.3)))
            entry.value = json.dumps(content)
            if rng.random() < 0.3:
                entry.value = mutate_text([entry.value.encode()], rng).decode("utf-8", "replace")
    whole = proto.SerializeToString()
    content = whole if is_deep else mutate_bytes([whole], rng)
    return content.replace(NO_HASH, hashlib.sha256(content).hexdigest().encode())


READERS: dict[str, Reader] = {
    "wav": Reader(".wav", read_audio, wav_seeds),
    "flac": Reader(".flac", read_audio, lambda: _audio("FLAC", ("PCM_16", "PCM_24"))),
    "ogg": Reader(".ogg", read_audio, lambda: _audio("OGG", ("VORBIS", "OPUS"))),
    "mp3": Reader(".mp3", read_audio, lambda: _audio("MP3", ("MPEG_LAYER_III",))),
    "av": Reader(".m4a", read_audio, av_seeds),
    "protocol": Reader(".txt", read_protocol_both, _encode(PROTOCOLS), mutate_text),
    "scores": Reader(".tsv", read_scores, _encode(SCORES), mutate_text),
    "key": Reader(".tsv", read_key, _encode(KEYS), mutate_text),
    "list": Reader(".txt", read_list, _encode(LISTS), mutate_text),
    "csv": Reader(".csv", read_list, _encode(TABLES), mutate_text),
    "segments": Reader(".txt", read_segments, _encode(SEGMENTS), mutate_text),
    "checkpoint": Reader(".pt", read_model, lambda: [checkpoint_seed()], mutate_checkpoint),
    "onnx": Reader(".onnx", read_onnx, lambda: [onnx_seed()], mutate_onnx),
}


@cache
def _seeds(name: str) -> Sequence[bytes]:
    return READERS[name].seeds()


def mutation(name: str, seed: int, k: int) -> bytes:
    """Return mutation k of a reader: the same for the same seed, whatever came before."""
    return READERS[name].mutate(_seeds(name), random.Random(f"{name} {seed} {k}"))


# Processes -------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a reader did with its mutations."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest_s: float = 0.0
    peak_bytes: int = 0

    @property
    def n_findings(self) -> int:
        """How many mutations did what they must not."""
        return sum(n for name, n in self.counts.items() if name not in ("read", *DOCUMENTED))

    def add(self, k: int, report: dict[str, Any]) -> None:
        """Count what came of mutation k."""
        kind = report["kind"]
        self.counts[kind] += 1
        self.slowest_s = max(self.slowest_s, report.get("seconds", 0.0))
        self.peak_bytes = max(self.peak_bytes, report.get("bytes", 0))
        if kind != "read" and kind not in DOCUMENTED and self.counts[kind] <= N_SHOWN:
            self.findings.append({"mutation": k, **report})


def fuzz(name: str, n: int, seed: int) -> Outcome:
    """Run a reader over n mutations, in a process that may die or hang and is then replaced."""
    outcome = Outcome()
    _seeds(name)  # made once, before the processes are
    forks = multiprocessing.get_context("fork")
    with ProcessPool(max_workers=1, initializer=_limit, context=forks) as pool:
        futures = [pool.schedule(_task, args=(name, seed, k), timeout=LIMIT_S) for k in range(n)]
        for k, future in enumerate(futures):
            try:
                outcome.add(k, future.result())
            except TimeoutError:
                outcome.add(k, {"kind": "hang"})
            except ProcessExpired as error:
                outcome.add(k, {"kind": f"died with {error.exitcode}"})
    return outcome


def _limit() -> None:
    sys.setrecursionlimit(1000)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # decoders write there what they think of a file
        os.dup2(nowhere, descriptor)
    limit = resident("VmData") + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _task(name: str, seed: int, k: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutation{READERS[name].suffix}"
        path.write_bytes(mutation(name, seed, k))
        return run_one(READERS[name].read, path)


def run_one(read: Callable[[Path], object], path: Path) -> dict[str, Any]:
    """Read one file and say what came of it."""
    before_s = time.process_time()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    report = {"kind": "read", "message": ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(path)
    except Exception as error:
        report = {"kind": classify(error, path), "message": str(error)[:300]}
        if report["kind"] not in DOCUMENTED:
            report["at"] = "".join(traceback.format_tb(error.__traceback__)[-3:])
    taken = resident("VmHWM") - before
    return {**report, "seconds": time.process_time() - before_s, "bytes": max(0, taken)}


def classify(error: Exception, path: Path) -> str:
    """Return the name of a documented refusal, else one that says what is wrong with it."""
    name = type(error).__name__
    if DOCUMENTED.get(name) is not type(error):
        return f"undocumented {name}"
    message = str(error)
    if "logits are not finite" in message:  # said of the audio, by a model of absurd weights
        return name
    if path.name not in message and str(path.parent) not in message:  # or one that it names
        return f"{name} without the file's name"
    if "allocat" in message or "memory" in message.lower():
        return f"{name} for want of memory"
    if "\n" in message:
        return f"{name} of several lines"
    return name


def main() -> int:
    """Fuzz the chosen readers; 1 where there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=READERS, default=[*READERS], metavar="READER")
    parser.add_argument("--n", type=int, default=10_000, help="mutations per reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write no record")
    parser.add_argument("--show", type=int, metavar="K", help="write mutation K and stop")
    args = parser.parse_args()
    if args.show is not None:
        sys.stdout.buffer.write(mutation(args.only[0], args.seed, args.show))
        return 0
    outcomes = {}
    for name in args.only:
        start = time.perf_counter()
        outcomes[name] = fuzz(name, args.n, args.seed)
        print(
            f"{name}: {dict(outcomes[name].counts)}, slowest {outcomes[name].slowest_s:.2f} s, "
            f"{outcomes[name].peak_bytes / 2**20:.0f} MiB, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        for finding in outcomes[name].findings:
            print(f"  {json.dumps(finding, ensure_ascii=False)}", flush=True)
        if not args.dry:
            record(name, outcomes[name], args.n, args.seed)
    return int(any(outcome.n_findings for outcome in outcomes.values()))


def record(name: str, outcome: Outcome, n: int, seed: int) -> None:
    """Put one reader's row into ``results/fuzz.json``; the others keep theirs."""
    told = ", ".join(f"{count} {kind}" for kind, count in outcome.counts.most_common())
    row = Row(
        case=f"{name}: {n:,} mutations",
        ours=outcome.n_findings,
        unit="findings",
        goal="none",
        met=outcome.n_findings == 0,
        note=f"seed {seed}; {told}; at most {outcome.slowest_s:.2f} s and "
        f"{outcome.peak_bytes / 2**20:.0f} MiB for one",
    )
    write_results("fuzz", [row], keep=True)


if __name__ == "__main__":
    sys.exit(main())

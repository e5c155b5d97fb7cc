"""What kind of generator made a clip, from the name that its page or corpus gives it."""

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


def family(generator: str) -> str:
    """Return one of `FAMILIES`.

    Example:
        >>> [family(name) for name in ("HiFi-GAN copy", "Mimi codec", "AutoVC", "VALL-E", "X")]
        ['vocoder copy', 'codec', 'conversion', 'TTS', 'unknown']
    """
    name = generator.lower()
    return next((kind for kind, rule in _RULES.items() if re.search(rule, name)), "unknown")

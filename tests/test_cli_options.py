"""Options that are made from the fields of a dataclass."""

import argparse
from dataclasses import dataclass, field
from typing import Literal

from asvspoof_cm.cli.options import add_fields, given_fields


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Some settings.

    Attributes:
        n_epochs: Maximum number of epochs. Training may stop before.
        lr: LR after the warm-up, in 1 % of
            cases another.
        mode: How `it` is done.
        window_s: Length of a window.
        limit: Highest value; None for no limit.
        fast: Be fast.
        table: Not an option.
        hidden: Not shown.

    Example:
        >>> Settings().n_epochs
        100
    """

    n_epochs: int = 100
    lr: float = 1e-4
    mode: Literal["slow", "quick"] = "slow"
    window_s: float = 4.0
    limit: float | None = None
    fast: bool = False
    table: dict[str, int] = field(default_factory=dict)
    hidden: str = ""


def make():
    parser = argparse.ArgumentParser(prog="x", formatter_class=argparse.RawTextHelpFormatter)
    add_fields(parser, Settings, {"mode": "slow or quick"}, skip=("hidden",))
    return parser


def test_a_field_is_an_option_with_its_type_its_line_and_its_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = " ".join(make().format_help().split())
    assert "--epochs X maximum number of epochs (default: 100)" in lines
    assert "--lr X LR after the warm-up, in 1 % of cases another (default: 0.0001)" in lines
    assert "--mode slow|quick slow or quick (default: slow)" in lines
    assert "--window-s S length of a window (default: 4)" in lines
    assert "--limit X highest value; None for no limit" in lines
    assert "--fast be fast" in lines
    assert "--table" not in lines
    assert "--hidden" not in lines


def test_only_what_was_given_comes_back():
    assert given_fields(make().parse_args([]), Settings) == {}
    arguments = ["--epochs", "3", "--fast", "--limit", "0.5", "--mode", "quick"]
    given = given_fields(make().parse_args(arguments), Settings)
    assert given == {"n_epochs": 3, "fast": True, "limit": 0.5, "mode": "quick"}

"""What the errors of a decision cost, and how likely spoofs are: the defaults are ASVspoof 5's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from asvspoof_cm._util import Plain, check_inside_unit, check_positive_finite


@dataclass(frozen=True, kw_only=True)
class DetectionCosts(Plain):
    """Costs of the two errors of a countermeasure and the prior of spoofing.

    The detection cost function is β·P_miss + P_fa over its value for the cheaper trivial decision,
    min(β, 1), with β = c_miss (1 − p_spoof) / (c_fa p_spoof).

    Example:
        >>> round(DetectionCosts().beta, 6), round(DetectionCosts().threshold, 4)
        (1.9, -0.6419)
    """

    p_spoof: float = 0.05
    c_miss: float = 1.0
    c_fa: float = 10.0

    def __post_init__(self) -> None:
        check_inside_unit(p_spoof=self.p_spoof)
        check_positive_finite(c_miss=self.c_miss, c_fa=self.c_fa)

    @property
    def beta(self) -> float:
        """Weight of a miss against a false alarm, priors included."""
        return self.c_miss * (1.0 - self.p_spoof) / (self.c_fa * self.p_spoof)

    @property
    def threshold(self) -> float:
        """The Bayes threshold −ln β: accept a log-likelihood ratio at or above it."""
        return -math.log(self.beta)


ASVSPOOF5: Final = DetectionCosts()
"""Track 1 of ASVspoof 5."""


@dataclass(frozen=True, kw_only=True)
class SasvCosts:
    """Costs and priors of spoofing-robust speaker verification: a-DCF and t-DCF.

    Example:
        >>> round(SasvCosts().rho, 6), round(SasvCosts().threshold, 4)
        (0.840336, -0.4579)
    """

    p_target: float = 0.95 * 0.99
    p_nontarget: float = 0.95 * 0.01
    p_spoof: float = 0.05
    c_miss: float = 1.0
    c_fa_nontarget: float = 10.0
    c_fa_spoof: float = 10.0

    def __post_init__(self) -> None:
        priors = (self.p_target, self.p_nontarget, self.p_spoof)
        if min(priors) < 0.0 or not math.isclose(sum(priors), 1.0, abs_tol=1e-9):
            raise ValueError(
                "`p_target`, `p_nontarget` and `p_spoof` must be at least 0 and sum to 1; "
                f"got {priors}."
            )
        check_positive_finite(
            c_miss=self.c_miss, c_fa_nontarget=self.c_fa_nontarget, c_fa_spoof=self.c_fa_spoof
        )
        check_inside_unit(p_target=self.p_target)

    @property
    def rho(self) -> float:
        """Share of spoofs in the cost of accepting everyone who must be rejected."""
        nontarget = self.p_nontarget * self.c_fa_nontarget
        spoof = self.p_spoof * self.c_fa_spoof
        return spoof / (nontarget + spoof)

    @property
    def threshold(self) -> float:
        """The Bayes threshold: accept the LLR of "target" against the rest at or above it.

        The rest is nontarget and spoof, mixed by `rho` as in `calibration.fuse_sasv`.
        """
        accepting = self.p_nontarget * self.c_fa_nontarget + self.p_spoof * self.c_fa_spoof
        return math.log(accepting / (self.p_target * self.c_miss))


ASVSPOOF5_SASV: Final = SasvCosts()
"""Track 2 of ASVspoof 5."""

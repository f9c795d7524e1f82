"""How the noise of the steps hangs together. Frozen data, one file for each mechanism."""

from __future__ import annotations

from sfumato.privacy.mechanism.gaussian import Gaussian

Mechanism = Gaussian
MECHANISMS: dict[str, type[Mechanism]] = {"Gaussian": Gaussian}

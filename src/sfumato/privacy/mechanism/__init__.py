"""The mechanisms: how the noise is correlated across steps. Frozen data, one file for each kind."""

from __future__ import annotations

from sfumato.privacy.mechanism.mechanism import Gaussian
from sfumato.privacy.mechanism.mechanism import Mechanism as Mechanism
from sfumato.privacy.mechanism.toeplitz import BandedToeplitz, BufferedToeplitz
from sfumato.privacy.mechanism.toeplitz import Toeplitz as Toeplitz
from sfumato.privacy.mechanism.tree import Tree

MECHANISMS: dict[str, type[Mechanism]] = {
    each.__name__: each for each in (Gaussian, Tree, BandedToeplitz, BufferedToeplitz)
}

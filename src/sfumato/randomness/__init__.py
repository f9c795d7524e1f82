"""Dice: every draw is a function of (secret key, stream, step), so a step can be replayed and is never thrown twice."""

from sfumato.randomness.keys import DiceKey, owner_key
from sfumato.randomness.noise import Noise
from sfumato.randomness.sampler import Sampler
from sfumato.randomness.search import noisy_score, number_of_candidates, settings_of
from sfumato.randomness.space import Choice, Dimension, LogUniform, Space, Uniform

__all__ = [
    "Choice",
    "DiceKey",
    "Dimension",
    "LogUniform",
    "Noise",
    "Sampler",
    "Space",
    "Uniform",
    "noisy_score",
    "number_of_candidates",
    "owner_key",
    "settings_of",
]

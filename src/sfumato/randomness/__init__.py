"""Dice: every draw is a function of (secret key, stream, step), so a step can be replayed and is never thrown twice."""

from sfumato.randomness.keys import DiceKey, owner_key
from sfumato.randomness.noise import Noise
from sfumato.randomness.sampler import Sampler

__all__ = ["DiceKey", "Noise", "Sampler", "owner_key"]

from .ema import EMA as EMA

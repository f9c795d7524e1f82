from .average import Average as Average
from .ema import EMA as EMA
from .last_mean import LastMean as LastMean
from .over import TrainingOver as TrainingOver

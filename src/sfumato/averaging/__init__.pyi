from .aggregates import exponential as exponential
from .aggregates import mean as mean
from .ema import EMA as EMA
from .uncertainty import Interval as Interval
from .uncertainty import interval as interval
from .uncertainty import spaced as spaced

from .aggregates import exponential as exponential
from .aggregates import mean as mean
from .ema import EMA as EMA
from .keeping import kept_steps as kept_steps
from .keeping import number_by_rule as number_by_rule
from .uncertainty import Interval as Interval
from .uncertainty import interval as interval
from .uncertainty import spaced as spaced

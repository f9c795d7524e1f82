from .ema import EMA as EMA
from .keeping import kept_steps as kept_steps
from .keeping import number_by_rule as number_by_rule

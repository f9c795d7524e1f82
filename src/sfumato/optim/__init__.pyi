from .names import NAMES as NAMES
from .names import create as create
from .schedules import SCHEDULES as SCHEDULES
from .schedules import schedule as schedule

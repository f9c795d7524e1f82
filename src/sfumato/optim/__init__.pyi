from .names import FACTOR as FACTOR
from .names import NAMES as NAMES
from .names import OWN as OWN
from .names import check as check
from .names import create as create
from .schedules import SCHEDULES as SCHEDULES
from .schedules import check_schedule as check_schedule
from .schedules import schedule as schedule

from .descent import SCHEDULES as SCHEDULES
from .descent import check_schedule as check_schedule
from .descent import schedule as schedule
from .optimizers import FACTOR as FACTOR
from .optimizers import NAMES as NAMES
from .optimizers import check as check
from .optimizers import check_parameters as check_parameters
from .optimizers import create as create

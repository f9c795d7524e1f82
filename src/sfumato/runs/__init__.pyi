from .loaded import Loaded as Loaded
from .loaded import load as load
from .run import Run as Run
from .uncertain import Intervals as Intervals
from .uncertain import intervals as intervals
from .verdict import Verdict as Verdict
from .verdict import verify as verify

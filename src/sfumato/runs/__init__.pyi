from .loaded import Loaded as Loaded
from .loaded import load as load
from .run import Run as Run
from .verdict import Verdict as Verdict
from .verdict import verify as verify

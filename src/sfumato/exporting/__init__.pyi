from .exported import Exported as Exported
from .exported import export as export

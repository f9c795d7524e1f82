from .export import Exported as Exported
from .export import export as export

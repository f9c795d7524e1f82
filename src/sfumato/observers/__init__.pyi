from .notebook import shown as shown
from .observer import Observer as Observer
from .observer import Rows as Rows
from .observer import Shown as Shown
from .observer import TensorBoard as TensorBoard
from .progress import Bars as Bars
from .progress import Progress as Progress
from .progress import Silence as Silence

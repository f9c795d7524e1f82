from .alone import keeps_apart as keeps_apart
from .alone import outputs_alone as outputs_alone
from .alone import outputs_together as outputs_together
from .alone import same_throughout as same_throughout
from .clipped import ClippedGradient as ClippedGradient
from .explain import Explanation as Explanation
from .grid import GridSum as GridSum
from .sums import ClippedSum as ClippedSum

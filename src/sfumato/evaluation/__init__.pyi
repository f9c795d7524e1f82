from .recall import OperatingPoint as OperatingPoint
from .recall import Recall as Recall
from .recall import recall_at_far as recall_at_far
from .recall import roc as roc
from .similarity import nearest as nearest
from .similarity import recall_at_k as recall_at_k
from .similarity import similarity as similarity
from .similarity import verify as verify

from .bodies import Limits as Limits
from .service import Service as Service

from .caching import features as features
from .conclusion.aggregating import Aggregate as Aggregate
from .conclusion.aggregating import aggregate as aggregate
from .own.asked import private_steps as private_steps
from .public.pretraining import pretrain as pretrain
from .run import train as train
from .step import PrivateStep as PrivateStep

from .caching import features as features
from .experiment import Experiment as Experiment
from .public import pretrain as pretrain
from .run import train as train
from .settings import Performance as Performance
from .settings import Settings as Settings
from .step import PrivateStep as PrivateStep

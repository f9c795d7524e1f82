from .clients import EmbeddingExperiment as EmbeddingExperiment
from .experiment import Experiment as Experiment
from .settings import Performance as Performance
from .settings import Settings as Settings

from gym_track.config import MLflow as MLflow
from gym_track.config import SwanLab as SwanLab
from gym_track.config import TensorBoard as TensorBoard
from gym_track.config import Tracker as Tracker
from gym_track.config import Trackio as Trackio
from gym_track.config import WandB as WandB

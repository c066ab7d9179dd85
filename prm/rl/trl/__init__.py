"""Step rewards in TRL: a GRPO trainer with an advantage a step, and a plain reward function.

Needs the extra ``trl`` of this package.
"""

from prm.rl.trl.reward import StepRewardFunction
from prm.rl.trl.rollouts import EnvironmentRollouts
from prm.rl.trl.trainer import StepGRPOTrainer

__all__ = ["EnvironmentRollouts", "StepGRPOTrainer", "StepRewardFunction"]

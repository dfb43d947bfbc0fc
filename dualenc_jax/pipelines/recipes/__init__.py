"""Commands run one after the other, each on what those before it have made."""

from dualenc_jax.pipelines.recipes.recipe import Recipe, Stage
from dualenc_jax.pipelines.recipes.sweeps import sweep

__all__ = ['Recipe', 'Stage', 'sweep']

"""Analysis of a model's embedding space: numbers and the papers' figures.

`draw` samples queries and passages, `analyse` embeds and measures them, and
`figures.write` draws. Quality by metrics is in `results/`.
"""

from dualenc_jax.evaluation.analysis.embedding_space import analyse, Analysis
from dualenc_jax.evaluation.analysis.vectors import draw, Sample

__all__ = ['analyse', 'Analysis', 'draw', 'Sample']

"""The report on a trained model: what is read, and the page made of it.

`read` gathers the contents of a MODEL_DIR and of others, and `render` writes
one HTML page that loads nothing. It needs neither JAX nor TensorFlow. Figures
of the embedding space are made in `analysis/`.
"""

from dualenc_jax.evaluation.report.contents import Contents, read
from dualenc_jax.evaluation.report.page import render

__all__ = ['Contents', 'read', 'render']

"""The inspection of a task: counts, lengths, faults and their remedies.

`inspect_task` reads and counts, `find_faults` judges, `markdown` reports.
Nothing here repairs data.
"""

from dualenc_jax.data.check.findings import find_faults, Finding, Level
from dualenc_jax.data.check.inspection import inspect_task
from dualenc_jax.data.check.report import markdown
from dualenc_jax.data.check.summary import Inspection

__all__ = [
    'Finding', 'Inspection', 'Level', 'find_faults', 'inspect_task', 'markdown',
]

"""A mixture of several tasks by rates, to train on together."""

from collections.abc import Sequence
import dataclasses

from dualenc_jax.data import dataset
from dualenc_jax.data.dataset import Dataset
from dualenc_jax.utils.errors import expect, UserError


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Tasks whose training examples are mixed, as in a seqio mixture.

  Each task keeps its own token cache; of every 65,536 pairs in a row its share
  is its rate. A seqio mixture works, too, as a `SeqioTask` of its name.

  Attributes:
    tasks: tasks with a train split.
    rates: positive weights of the tasks; they need not add up to 1. None for
      the numbers of examples.
    validation: the task whose validation split is evaluated during training;
      None for no such evaluation. Evaluate the others one at a time.
    prompts: names of the prompts (PROMPTS) of the tasks' queries, one each;
      None for QUERY_PREFIX, of a task or of all.
  """

  tasks: Sequence[Dataset]
  rates: Sequence[float] | None = None
  validation: Dataset | None = None
  prompts: Sequence[str | None] | None = None

  def __post_init__(self):
    if not self.tasks:
      raise UserError('Mixture.tasks is empty; expected at least one task.')
    for task in self.tasks:
      dataset.check('One of Mixture.tasks', task)
    count = len(self.tasks)
    expect(
        self.prompts is None or len(self.prompts) == count,
        'Mixture.prompts', self.prompts,
        f'the name of a prompt, or None, for each of the {count} tasks',
    )
    expect(
        self.rates is None
        or len(self.rates) == count and all(rate > 0 for rate in self.rates),
        'Mixture.rates', self.rates,
        f'a positive number for each of the {count} tasks',
    )

  @property
  def task_name(self) -> str:
    return '+'.join(task.task_name for task in self.tasks)

  @property
  def label(self) -> str:
    return '+'.join(task.label for task in self.tasks)

  def splits(self) -> tuple[str, ...]:
    return ('train', 'validation') if self.validation else ('train',)

  def parts(self) -> list[tuple[Dataset, float | None]]:
    """(task, rate) of each, rates adding up to 1; None if by examples."""
    parts = [part for task in self.tasks for part, _ in task.parts()]
    if len(parts) > len(self.tasks):
      raise UserError(
          f'Mixture.tasks: {self.task_name} has a mixture among its tasks;'
          ' expected single ones. Name its tasks instead.'
      )
    if self.rates is None:
      return [(task, None) for task in self.tasks]
    total = sum(self.rates)
    return [(task, rate / total) for task, rate in zip(self.tasks, self.rates)]

  def prompt_of(self, task: Dataset) -> str | None:
    found = [p for t, p in zip(self.tasks, self.prompts or ()) if t == task]
    return found[0] if found else None

  def for_split(self, split: str) -> Dataset:
    """The one task that has a split."""
    if split == 'validation' and self.validation is not None:
      return self.validation
    raise UserError(
        f'The mixture {self.task_name} has no split {split!r} to read. Name one'
        ' of its tasks, or give Mixture.validation.'
    )

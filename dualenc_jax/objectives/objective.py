"""`Objective`, the interface between a run and what it trains."""

from collections.abc import Callable, Iterator, Sequence
import sys
from typing import Any, Protocol

import jax

from dualenc_jax.data.columns import Column
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.utils.errors import expect

# The key of dropout, None for none; the value and metrics, each float32 [].
Key = jax.Array | None
Result = tuple[jax.Array, dict[str, jax.Array]]


class Batches(Protocol):
  """Global batches by step, each a pure function of data, seed and step.

  `cells` are equal parts of every array's leading axis, a multiple of the
  devices on the data axis; a host feeds some of them. At most as many programs
  are compiled as there are `shapes`.
  """

  cells: int
  shapes: Sequence[Any]

  def __call__(self, step: int, cells: Any = slice(None)) -> Any:
    """Returns the cells, a slice or numbers, of a step's batch, on the host."""


class Run(Protocol):
  """The sources of batches: what objectives see of `training.Experiment`.

  Attributes:
    caches: token caches of the training split, one for each part of a mixture,
      built when first used.
    corpora: token caches of the corpora of these queries, of the parts that
      have one.
    rates: share of each cache; None for one cache.
    extra_columns: columns of training batches beyond those of every dataset.
  """

  @property
  def tokenizer(self) -> Tokenizer: ...
  @property
  def seed(self) -> int: ...
  @property
  def partitioner(self) -> Partitioner: ...
  @property
  def batch_size(self) -> int: ...
  @property
  def caches(self) -> Sequence[Any]: ...
  @property
  def corpora(self) -> Sequence[Any]: ...
  @property
  def rates(self) -> Sequence[float] | None: ...
  @property
  def extra_columns(self) -> Sequence[Column]: ...
  @property
  def batches(self) -> Any: ...


class Objective:
  """The base class of what is trained: parameters, batches, and their value.

  A subclass defines the first four methods; the others have defaults.

  Attributes:
    outputs: 'embeddings', 'scores' of pairs or 'queries', which decides how a
      run is evaluated; None for no evaluation.
    frozen: expressions of parameters that are never trained, as in
      `Optimizer.freeze`.
    needs_start: whether training from scratch makes no sense.
  """

  outputs: str | None = None

  @property
  def needs_start(self) -> bool:
    return False

  @property
  def frozen(self) -> Sequence[str]:
    return ()

  def init(self, key: jax.Array) -> Any:
    """Returns fresh parameters, bare or in Flax's boxes of logical axes."""
    raise NotImplementedError

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    """Returns the value of a global batch, to be minimised, and metrics.

    Parameters are those of `init` without boxes. The train step adds `step`,
    the steps taken so far, int32 [], to a batch that is a mapping. Without a
    key there is no dropout. The metric `loss`, float32 [], is the value unless
    it is given.
    """
    raise NotImplementedError

  def batches(self, run: Run) -> Any:
    """Returns the training batches; UserError if the examples are unfit."""
    raise NotImplementedError

  def abstract_batch(self, run: Run) -> Any:
    """Returns a usual batch of a step, ShapeDtypeStruct in place of arrays."""
    raise NotImplementedError

  def step(
      self, params: Any, extra: Any, batch: Any, key: Key
  ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """Returns the value and metrics of a batch, and the new extra state."""
    value, metrics = self(params, batch, key)
    return value, metrics, extra

  def extra_state(self, run: Run) -> Any:
    """Returns the state of steps beside the parameters, abstract.

    It is saved with every checkpoint. Leading axes go over the data axis.
    """
    return ()

  def init_extra_state(self, run: Run, params: Any) -> Any:
    """Returns the first `extra_state`, on the mesh."""
    return ()

  def make_completion(
      self, run: Run, params: Any
  ) -> Callable[[Any, Any], Any] | None:
    """Returns a function that completes a batch; None if batches are complete.

    It is made before the first step of a process, from the parameters then. It
    takes the present parameters and a batch on the mesh, and adds arrays that
    stay the same, or that a host computes.
    """
    return None

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    """Raises UserError unless the vocabulary fits the model."""

  def check_mesh(self, partitioner: Partitioner) -> None:
    """Raises UserError unless the model divides among the devices."""

  def check_batch(self, run: Run) -> None:
    """Raises UserError unless a training batch divides among the devices."""
    run.partitioner.check_batch_size('BATCH_SIZE', run.batch_size)

  def batch_sizes(self, run: Run) -> range:
    """Returns the sizes that the global batch could have, ascending."""
    unit = run.partitioner.mesh.shape['data']
    return range(unit, sys.maxsize, unit)

  def describe(self, run: Run) -> Iterator[str]:
    """Yields lines on the objective, before the examples are tokenised."""
    yield f'Global batch: {run.batch_size}.'

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    """Yields lines on batches from `step` on; UserError if unfit to learn."""
    yield from ()

  def chance(self, run: Run) -> float | None:
    """Returns the loss of a model that knows nothing; None if unknown."""
    return None

  @property
  def facts(self) -> dict[str, Any]:
    """Facts that no tensor of a model holds, as JSON for its checkpoints."""
    return {}

  def codec_of(self, params: Any) -> Any:
    """Returns the codec as trained so far; None for models without one."""
    return None


def check(name: str, objective: Any) -> None:
  """Raises UserError, with the name of the setting, unless it is one."""
  expect(
      isinstance(objective, Objective), name, objective,
      'an object such as, in gin, OBJECTIVE = @objectives.Contrastive()',
  )

"""The systems of a comparison: model_dirs, result folders or run files."""

from collections.abc import Sequence
import dataclasses
import hashlib
import itertools
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.results import folder
from dualenc_jax.results.folder import Key, Model, PerQuery, Result
from dualenc_jax.search import hybrid
from dualenc_jax.search.ranking import best_first


def read(
    paths: Sequence[pathlib.Path],
    names: Sequence[str] | None = None,
    qrels: pathlib.Path | None = None,
    k: int | None = None,
) -> list[Model]:
  """Reads two systems or more, under different names.

  Args:
    paths: folders with results of `dualenc evaluate`, with ':bm25', ':hybrid'
      or ':rerank' after them for these beside the model, or TREC run files;
      'one.trec+other.trec' for several fused by reciprocal ranks.
    names: what to call the systems; None for what their folders or files say.
    qrels: what run files are measured by.
    k: how many of the best hits a query of run files to use, None for all.

  Raises:
    UserError: fewer than two, one that cannot be read, run files without qrels
      or mixed with folders, or names that do not fit.
  """
  if len(paths) < 2:
    raise UserError('Give two or more systems to compare, the baseline first.')
  if names is not None and len(names) != len(paths):
    raise UserError(
        f'--names has {len(names)} names for {len(paths)} systems; expected as'
        ' many.'
    )
  if names is not None and len({*names}) < len(names):
    raise UserError(f'--names={",".join(names)} has a name twice.')
  paths, baselines = zip(*map(_split, paths))
  files = list(map(_fused, paths))
  for path in itertools.chain(*files):
    if not path.exists():
      raise UserError(f'{path} does not exist.')
  named = list(zip(paths, names or [None] * len(paths)))
  runs = [path for path in itertools.chain(*files) if path.is_file()]
  if runs and len(runs) < sum(map(len, files)):
    raise UserError(
        f'{runs[0]} is a run file, but others are folders. Give the run.trec'
        ' of their result folders instead, and --qrels.'
    )
  if runs and qrels is None:
    raise UserError(f'{runs[0]} is a run file: give --qrels to measure it by.')
  if not runs and (qrels is not None or k):
    raise UserError('--qrels and --k are for run files, and none is given.')
  if fused := [path for path, own in zip(paths, files) if len(own) > 1]:
    if not runs:
      raise UserError(
          f'{fused[0]}: only run files are fused. Give the run.trec of their'
          ' result folders, and --qrels; MODEL_DIR:hybrid is a model and BM25.'
      )
  if not runs:
    return _told_apart([
        folder.read_model(*system, baseline)
        for system, baseline in zip(named, baselines)
    ])
  judgements = Judgements.read(qrels)
  return _told_apart([
      of_run_files(own, judgements, k, name)
      for own, (_, name) in zip(files, named)
  ])


def _fused(path: pathlib.Path) -> list[pathlib.Path]:
  """The files of 'one.trec+other.trec'; of any other path that alone."""
  if path.exists() or '+' not in str(path):
    return [path]
  return list(map(pathlib.Path, str(path).split('+')))


def _split(path: pathlib.Path) -> tuple[pathlib.Path, str]:
  """A path and the baseline that is meant, '' for the model itself."""
  stem, _, baseline = str(path).rpartition(':')
  if baseline in folder.SYSTEMS and not path.exists():
    return pathlib.Path(stem), baseline
  return path, ''


def _told_apart(models: list[Model]) -> list[Model]:
  """The models, where names are repeated under their paths."""
  for names in ([m.name for m in models], [m.where for m in models]):
    if len({*names}) == len(names):
      return [
          Model(name, model.where, model.results)
          for name, model in zip(names, models)
      ]
  raise UserError(
      f'{", ".join(names)}: one is given twice. Give different ones, or tell'
      ' them apart by --names.'
  )


@dataclasses.dataclass(frozen=True)
class Judgements:
  """What runs are measured by.

  Attributes:
    path: of the file.
    qrels: query id -> passage id -> grade.
    source: SHA-256 of the file.
  """

  path: pathlib.Path
  qrels: metrics.Qrels
  source: str

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Judgements':
    """Reads qrels in TREC's, BEIR's or the JSON form.

    Raises:
      UserError: the file cannot be read, or has a bad row.
    """
    if not path.is_file():
      raise UserError(f'--qrels: {path} is no file.')
    source = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
      return cls(path, trec.read_qrels(path), source)
    except UserError as e:
      raise UserError(f'--qrels: {e}') from e


def of_run_files(
    paths: Sequence[pathlib.Path],
    judgements: Judgements,
    k: int | None = None,
    name: str | None = None,
) -> Model:
  """The one result of a run, see `metrics.evaluate_run`, or of several fused.

  Args:
    paths: TREC runs.
    judgements: what to measure it by.
    k: how many of the best hits of a query to use, None for all.
    name: of the system; by default the files'.

  Raises:
    UserError: a file that cannot be read, or no query with a relevant passage.
  """
  runs = list(map(trec.read_run, paths))
  for path, other in zip(paths[1:], runs[1:]):
    if not runs[0].keys() & other.keys():
      raise UserError(
          f'{paths[0]} and {path} have no query in common, so that there is'
          ' nothing to fuse. Are they of the same data set?'
      )
  run = runs[0] if len(runs) == 1 else hybrid.fused_runs(runs)
  path = '+'.join(map(str, paths))
  if k is not None:
    run = {
        query: {hit: hits[hit] for hit in best_first(hits)[:k]}
        for query, hits in run.items()
    }
  try:
    scores = metrics.evaluate_run(run, judgements.qrels, path)
  except UserError as e:
    raise UserError(f'{path} with --qrels {judgements.path}: {e}') from e
  values = PerQuery(tuple(scores.queries), scores.values)
  key = Key('run', None, judgements.path.stem, '')
  result = Result(
      where=path,
      key=key,
      metrics=scores.means(),
      provenance={
          'qrels': judgements.path.name,
          'source': judgements.source,
          'depth': scores.depth if k is None else k,
      },
      per_query=lambda: values,
  )
  name = name or '+'.join(own.stem for own in paths)
  return Model(name, path, {key: result})

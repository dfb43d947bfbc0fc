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

_RUN = 'run.trec'


def read(
    paths: Sequence[pathlib.Path],
    names: Sequence[str] | None = None,
    qrels: pathlib.Path | None = None,
    k: int | None = None,
    relevance_level: int | None = None,
) -> list[Model]:
  """Reads two systems or more, under different names.

  Args:
    paths: folders with results of `dualenc evaluate`, with ':bm25', ':hybrid'
      or ':rerank' after them for these beside the model, or TREC run files;
      'one.trec+other.trec' for several fused by reciprocal ranks.
    names: what to call the systems; None for what their folders or files say.
    qrels: what run files are measured by, and the run.trec of folders; None
      reads what was measured in folders.
    k: how many of the best hits a query of the runs to use, None for all.
    relevance_level: the least grade of a relevant passage, None for 1.

  Raises:
    UserError: fewer than two, one that cannot be read, run files without qrels,
      or names that do not fit.
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
  parts = list(map(_parts, paths))
  for part, _ in itertools.chain(*parts):
    if not part.exists():
      raise UserError(f'{part} does not exist.')
  if qrels is not None:
    judgements = Judgements.read(qrels, relevance_level or 1)
    return _told_apart([
        of_run_files([_run(*part, judgements) for part in own], judgements, k)
        for own in parts
    ], names)
  for path, own in zip(paths, parts):
    if len(own) > 1 or own[0][0].is_file():
      what = 'fused of runs' if len(own) > 1 else 'a run file'
      raise UserError(f'{path} is {what}: give --qrels to measure it by.')
  if k or relevance_level:
    raise UserError(
        '--k and --relevance_level are of run files, and of the run.trec in'
        ' result folders: give --qrels to measure them by.'
    )
  return _told_apart([
      folder.read_model(own[0][0], baseline=own[0][1]) for own in parts
  ], names)


def _parts(path: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
  """The parts of 'one.trec+other.trec'; of any other path that alone.

  Each with the baseline that is meant, '' for the model itself.
  """
  whole = _split(path)
  if whole[0].exists() or '+' not in str(path):
    return [whole]
  return [_split(pathlib.Path(part)) for part in str(path).split('+')]


def _split(path: pathlib.Path) -> tuple[pathlib.Path, str]:
  stem, _, baseline = str(path).rpartition(':')
  if baseline in folder.SYSTEMS and not path.exists():
    return pathlib.Path(stem), baseline
  return path, ''


def _run(
    path: pathlib.Path, baseline: str, judgements: 'Judgements'
) -> tuple[str, pathlib.Path]:
  """The name of a system and its run: a file, or the run.trec of a folder."""
  if path.is_file():
    if path.name == _RUN and (path.parent / folder.METRICS).exists():
      return folder.read_model(path.parent).name, path
    return pathlib.Path(path.name.removesuffix('.gz')).stem, path
  model = folder.read_model(path, baseline=baseline)
  files = [pathlib.Path(r.where, _RUN) for r in model.results.values()]
  found = [
      file for file in files
      if file.exists() and judgements.qrels.keys() & trec.read_run(file).keys()
  ]
  if len(found) == 1:
    return model.name, found[0]
  results = ', '.join(r.where for r in model.results.values())
  raise UserError(
      f'{path} has {len(found) or "no"} {_RUN} with queries of --qrels'
      f' {judgements.path}; expected one. Its results: {results}. '
      + (
          'Give one of these folders.'
          if found
          else 'Evaluate it on the set of the qrels.'
      )
  )


def _told_apart(
    models: list[Model], names: Sequence[str] | None
) -> list[Model]:
  """The models under names of their own.

  Without those they are called what their folders or files are; where names are
  repeated, by what in their paths differs.
  """
  own = names or [m.name for m in models]
  chosen = list(own)
  again = [i for i, name in enumerate(own) if own.count(name) > 1]
  for i, short in zip(again, differing([models[i].where for i in again])):
    # BM25 beside a model has the model's path.
    is_model = [m.where for m in models].count(models[i].where) == 1
    chosen[i] = short if is_model else f'{own[i]} ({short})'
  if len({*chosen}) < len(chosen):
    chosen = [m.where for m in models]
  if len({*chosen}) < len(chosen):
    raise UserError(
        f'{", ".join(chosen)}: one is given twice. Give different ones, or tell'
        ' them apart by --names.'
    )
  return [
      Model(name, model.where, model.results)
      for name, model in zip(chosen, models)
  ]


def differing(paths: Sequence[str | pathlib.Path]) -> list[str]:
  """Paths without the folders that all of them begin and end with.

  Something is left of each.
  """
  parts = [pathlib.Path(path).parts for path in paths]
  for _ in range(2):
    parts = [own[::-1] for own in parts]
    # One of them may be within another.
    while min(map(len, parts), default=0) > 1 and not any(
        own[0] != parts[0][0] for own in parts
    ):
      parts = [own[1:] for own in parts]
  return ['/'.join(own) for own in parts]


@dataclasses.dataclass(frozen=True)
class Judgements:
  """What runs are measured by.

  Attributes:
    path: of the file.
    qrels: query id -> passage id -> grade, the ids as runs have them.
    source: SHA-256 of the file.
    relevance_level: the least grade of a relevant passage.
  """

  path: pathlib.Path
  qrels: metrics.Qrels
  source: str
  relevance_level: int = 1

  @classmethod
  def read(cls, path: pathlib.Path, relevance_level: int = 1) -> 'Judgements':
    """Reads qrels in TREC's, BEIR's or the JSON form.

    Raises:
      UserError: the file cannot be read, or has a bad row.
    """
    if not path.is_file():
      raise UserError(f'--qrels: {path} is no file.')
    source = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
      qrels = {
          trec.field(query): {trec.field(hit): g for hit, g in own.items()}
          for query, own in trec.read_qrels(path).items()
      }
      return cls(path, qrels, source, relevance_level)
    except UserError as e:
      raise UserError(f'--qrels: {e}') from e


def of_run_files(
    named: Sequence[tuple[str, pathlib.Path]],
    judgements: Judgements,
    k: int | None = None,
) -> Model:
  """The one result of a run, see `metrics.evaluate_run`, or of several fused.

  Args:
    named: names and paths of TREC runs.
    judgements: what to measure it by.
    k: how many of the best hits of a query to use, None for all.

  Raises:
    UserError: a file that cannot be read, or no query with a relevant passage.
  """
  names, paths = zip(*named)
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
  level = judgements.relevance_level
  try:
    scores = metrics.evaluate_run(run, judgements.qrels, path, level)
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
          **({'relevance_level': level} if level > 1 else {}),
      },
      per_query=lambda: values,
  )
  return Model('+'.join(names), path, {key: result})

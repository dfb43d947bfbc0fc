"""The systems of a comparison: model_dirs, result folders or run files."""

from collections.abc import Sequence
import dataclasses
import hashlib
import pathlib

from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.result_files import (
  Key,
  Model,
  PerQuery,
  Result,
  RUN,
)
from dualenc_jax.retrieval.search import hybrid
from dualenc_jax.retrieval.search.ranking import best_first
from dualenc_jax.utils.errors import UserError

# A path, and the system beside the model that is meant, '' for the model.
_Part = tuple[pathlib.Path, str]


def read(
    paths: Sequence[pathlib.Path], names: Sequence[str] | None = None,
    qrels: pathlib.Path | None = None, k: int | None = None,
    relevance_level: int | None = None,
) -> list[Model]:
  """Reads two systems or more, or one with qrels, under different names.

  Args:
    paths: folders with results of `dualenc evaluate`, with ':bm25', ':hybrid'
      or ':rerank' after them for these beside the model, or TREC run files;
      'one.trec+other.trec' for several fused by reciprocal ranks.
    names: what to call the systems, '{codec}' being the codec of each; None for
      what their folders or files say.
    qrels: what run files are measured by, and the run.trec of folders; None
      reads what was measured in folders.
    k: how many of the best hits a query of the runs to use, None for all.
    relevance_level: the least grade of a relevant passage, None for 1.

  Raises:
    UserError: too few, one that cannot be read, run files without qrels,
      or names that do not fit.
  """
  if len(paths) < 2 and qrels is None:
    raise UserError(
        'Give two or more systems to compare, the baseline first, or --qrels to'
        ' measure one.'
    )
  if names is not None and len(names) != len(paths):
    raise UserError(
        f'--names has {len(names)} names for {len(paths)} systems; expected as'
        ' many.'
    )
  if names is not None and len({*names}) < len(names):
    raise UserError(f'--names={",".join(names)} has a name twice.')
  systems = list(map(_parts, paths))
  for part, _ in sum(systems, []):
    if not part.exists():
      raise UserError(f'{part} does not exist.')
  if qrels is not None:
    judged = _Judgements.read(qrels, relevance_level or 1)
    models = [
        _of_runs([_run(*part, judged) for part in parts], judged, k)
        for parts in systems
    ]
    return _named(models, names)
  for path, parts in zip(paths, systems):
    if len(parts) > 1 or parts[0][0].is_file():
      what = 'fused of runs' if len(parts) > 1 else 'a run file'
      raise UserError(f'{path} is {what}: give --qrels to measure it by.')
  if k or relevance_level:
    raise UserError(
        '--k and --relevance_level need --qrels, to measure run files and the'
        ' run.trec of folders.'
    )
  models = [
      result_files.read_model(part, baseline=system)
      for ((part, system),) in systems
  ]
  names = names and [*map(_with_codec, names, models)]
  return _named(models, names)


def _with_codec(name: str, model: Model) -> str:
  every = {r.provenance.get('codec') or 'fp32' for r in model.results.values()}
  return name.replace('{codec}', ' '.join(sorted(every)))


def _parts(path: pathlib.Path) -> list[_Part]:
  """The parts of 'one.trec+other.trec'; of any other path that alone."""
  whole = split(path)
  if whole[0].exists():
    return [whole]
  return [split(pathlib.Path(part)) for part in str(path).split('+')]


def split(path: pathlib.Path) -> _Part:
  """A folder or run, and the system after a colon, '' for none."""
  stem, _, baseline = str(path).rpartition(':')
  if baseline in result_files.SYSTEMS and not path.exists():
    return pathlib.Path(stem), baseline
  return path, ''


def _named(models: list[Model], names: Sequence[str] | None) -> list[Model]:
  """The models under different names.

  By default they are called what their folders or files are; where names are
  repeated, by what in their paths differs.
  """
  own = names or [m.name for m in models]
  places = [m.where for m in models]
  chosen = []
  for name, short, place in zip(own, distinct(own, places), places):
    # BM25 beside a model has the model's path.
    beside = own.count(name) > 1 and places.count(place) > 1
    chosen.append(f'{name} ({short})' if beside else short)
  if len({*chosen}) < len(chosen):
    chosen = places
  results = [
      pathlib.Path(result.where).resolve()
      for model in models for result in model.results.values()
  ]
  twice = names is None and len({*results}) < len(results)
  if twice or len({*chosen}) < len(chosen):
    raise UserError(
        f"{', '.join(places)}: one is given twice. Give different systems, or"
        ' different --names.'
    )
  return [dataclasses.replace(m, name=n) for n, m in zip(chosen, models)]


def distinct(
    names: Sequence[str], paths: Sequence[str | pathlib.Path]
) -> list[str]:
  """The names of paths; of those with one name what differs in their paths."""
  again = [i for i, name in enumerate(names) if names.count(name) > 1]
  shorter = dict(zip(again, _differing([paths[i] for i in again])))
  return [shorter.get(i, name) for i, name in enumerate(names)]


def _differing(paths: Sequence[str | pathlib.Path]) -> list[str]:
  """Paths without the folders that all of them begin and end with.

  Something is left of each.
  """
  parts = [pathlib.Path(path).parts for path in paths]
  for _ in range(2):
    parts = [own[::-1] for own in parts]
    # One of them may be within another.
    while min(map(len, parts), default=0) > 1 and (
        len({own[0] for own in parts}) == 1
    ):
      parts = [own[1:] for own in parts]
  return ['/'.join(own) for own in parts]


@dataclasses.dataclass(frozen=True)
class _Judgements:
  """Grades by query and passage id, as runs write ids; SHA-256 of the file."""

  path: pathlib.Path
  qrels: metrics.Qrels
  source: str
  level: int

  @classmethod
  def read(cls, path: pathlib.Path, level: int) -> '_Judgements':
    if not path.is_file():
      raise UserError(f'--qrels: {path} is not a file.')
    source = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
      found = trec.read_qrels(path)
    except UserError as e:
      raise UserError(f'--qrels: {e}') from e
    qrels = {
        trec.field(query): {trec.field(hit): g for hit, g in own.items()}
        for query, own in found.items()
    }
    return cls(path, qrels, source, level)


def _run(
    path: pathlib.Path, baseline: str, judged: _Judgements
) -> tuple[str, pathlib.Path]:
  """The name of a system and its run: a file, or the run.trec of a folder."""
  if path.is_file():
    if path.name == RUN and (path.parent / result_files.METRICS).exists():
      model = result_files.read_model(path.parent)
      _check_copies(*model.results.values())
      return model.name, path
    return pathlib.Path(path.name.removesuffix('.gz')).stem, path
  model = result_files.read_model(path, baseline=baseline)
  results = {pathlib.Path(r.where, RUN): r for r in model.results.values()}
  found = [
      file for file in results
      if file.exists() and judged.qrels.keys() & trec.read_run(file).keys()
  ]
  if len(found) == 1:
    _check_copies(results[found[0]])
    return model.name, found[0]
  hint = 'Give one of these folders.'
  raise UserError(
      f'{path} has {len(found) or "no"} {RUN} with queries of --qrels'
      f' {judged.path}; expected one. Its results:'
      f' {", ".join(r.where for r in results.values())}. '
      + (hint if found else 'Evaluate it on the set of the qrels.')
  )


def _check_copies(result: Result) -> None:
  """Refuses a run of equal texts as one: its ids are not all judged ones."""
  if result.provenance.get('equal_texts'):
    raise UserError(
        f'{result.where} has equal texts as one, by the id of the first, which'
        ' --qrels may not judge. Leave out --qrels, or evaluate it without'
        ' --equal_texts.'
    )


def _of_runs(
    named: Sequence[tuple[str, pathlib.Path]], judged: _Judgements,
    k: int | None,
) -> Model:
  """The one result of a run, or of several fused."""
  names, paths = zip(*named)
  runs = list(map(trec.read_run, paths))
  for path, other in zip(paths[1:], runs[1:]):
    if not runs[0].keys() & other.keys():
      raise UserError(
          f'{paths[0]} and {path} have no query in common, so that there is'
          ' nothing to fuse. Are they of the same data set?'
      )
  run = runs[0] if len(runs) == 1 else hybrid.fused_runs(runs)
  if k is not None:
    run = {
        query: {hit: hits[hit] for hit in best_first(hits)[:k]}
        for query, hits in run.items()
    }
  path = '+'.join(map(str, paths))
  try:
    scores = metrics.evaluate_run(run, judged.qrels, path, judged.level)
  except UserError as e:
    raise UserError(f'{path} with --qrels {judged.path}: {e}') from e
  values = PerQuery(tuple(scores.queries), scores.values)
  key = Key('run', None, judged.path.stem, '')
  facts = {
      'qrels': judged.path.name,
      'source': judged.source,
      'depth': scores.depth if k is None else k,
      **({'relevance_level': judged.level} if judged.level > 1 else {}),
  }
  result = Result(path, key, scores.means(), facts, lambda: values)
  return Model('+'.join(names), path, {key: result})

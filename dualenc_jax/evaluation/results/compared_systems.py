"""The systems of a comparison: model_dirs, result folders or run files."""

from collections.abc import Sequence
import dataclasses
import hashlib
import logging
import math
import os
import pathlib
from typing import NamedTuple

from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.result_files import (
  Key,
  Model,
  Result,
  RUN,
)
from dualenc_jax.retrieval.search.ranking import sort_hits
from dualenc_jax.utils.errors import missing, UserError

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Judgements:
  """Grades by query and passage id, as runs write ids; SHA-256 of the file."""

  path: pathlib.Path
  qrels: metrics.Qrels
  source: str
  level: int


class System(NamedTuple):
  """A system by its path, and perhaps a name and a line of figures.

  The path is a folder with results of `dualenc evaluate`, with ':bm25',
  ':hybrid' or ':rerank' at the end for these systems, or a TREC run file. A
  '{codec}' in the name is the codec.
  """

  path: pathlib.Path
  name: str | None = None
  line: str = ''


def systems(
    paths: Sequence[pathlib.Path], names: Sequence[str] | None = None,
    lines: Sequence[str] | None = None,
) -> list[System]:
  """The systems of a command line; UserError where names or lines miss some."""
  for flag, given in (('--names', names), ('--lines', lines)):
    if given is not None and len(given) != len(paths):
      raise UserError(
          f'{flag} has {len(given)} names for {len(paths)} systems; expected as'
          ' many.'
      )
  return [
      System(path, names[i] if names else None, lines[i] if lines else '')
      for i, path in enumerate(paths)
  ]


def keep_available(
    given: Sequence[System],
) -> tuple[list[System], tuple[str, ...]]:
  """The systems that have results, and descriptions of those without any.

  Raises:
    UserError: the baseline has no results, or only one system has.
  """
  kept, missing = [], []
  for system in given:
    if any(_results(system.path)):
      kept.append(system)
    else:
      named = f'{system.name} ({system.path})' if system.name else system.path
      missing.append(str(named))
  baseline = given[0]
  if not any(
      system.name == baseline.name if baseline.name else system is baseline
      for system in kept
  ):
    raise UserError(
        f'The baseline, {missing[0]}, has no results. Evaluate it, or give'
        ' another system first.'
    )
  if len(kept) < 2:
    raise UserError(
        f'Only {kept[0].path} has results; expected two systems or more. No'
        f' results: {", ".join(missing)}.'
    )
  if missing:
    _LOG.warning('Left out, no results: %s.', ', '.join(missing))
  return kept, tuple(missing)


def _results(path: pathlib.Path) -> list[pathlib.Path]:
  """The files of a system's results; a run file is its own."""
  path, system = split_system(path)
  return [path] if path.is_file() else result_files.find_results(path, system)


def read(
    given: Sequence[System], qrels: pathlib.Path | None = None,
    k: int | None = None, relevance_level: int | None = None,
    asked: Sequence[str] = (),
) -> list[Model]:
  """Reads two systems or more, or one with qrels.

  Systems of one name are one model, with the results of all. Names that are not
  given are those of folders or files, with what differs of their paths.

  Args:
    given: the systems, all with names or none.
    qrels: judgements that run files, and the run.trec of folders, are measured
      by; None reads the results in folders.
    k: the best hits a query of the runs that are used, None for all.
    relevance_level: the least grade of a relevant passage, None for 1.
    asked: names of metrics that runs are measured by beside the standard ones.

  Raises:
    UserError: too few systems, one that cannot be read, run files without
      qrels, or two results of one name on the same set.
  """
  if len(given) < 2 and qrels is None:
    raise UserError(
        'Give two or more systems to compare, the baseline first, or --qrels to'
        ' measure one.'
    )
  if qrels is None and (k or relevance_level):
    raise UserError('--k and --relevance_level need --qrels: give it, too.')
  judged = None
  if qrels is not None:
    judged = _read_judgements(qrels, relevance_level or 1)
    for name in asked:
      if metrics.parse(name).is_of_answers:
        raise UserError(
            f'--metrics: {name} needs answers, but --qrels has judgements.'
            ' Leave it out.'
        )
  models = []
  for path, system in (split_system(each.path) for each in given):
    if not path.exists():
      raise UserError(missing(path))
    if judged is not None:
      name, run = _find_run(path, system, judged)
      models.append(_measure_run(name, run, judged, k, asked))
    elif path.is_file():
      raise UserError(f'{path} is a run file: give --qrels to measure it by.')
    else:
      models.append(result_files.read_model(path, baseline=system))
  names = [each.name for each in given if each.name]
  if not names:
    results = [
        pathlib.Path(result.where).resolve()
        for model in models for result in model.results.values()
    ]
    names = distinct([m.name for m in models], [m.where for m in models])
    if len({*results}) < len(results) or len({*names}) < len(models):
      raise UserError(
          f'{", ".join(m.where for m in models)}: one is given twice. Give'
          ' different systems.'
      )
  named: dict[str, list[Model]] = {}
  for name, each, model in zip(names, given, models):
    name = _with_codec(name, model)
    own = dataclasses.replace(model, name=name, line=each.line)
    named.setdefault(name, []).append(own)
  joined = list(map(_join, named.values()))
  if len(joined) < 2 and qrels is None:
    raise UserError(
        f'--names calls all systems {joined[0].name}; expected two names or'
        ' more.'
    )
  return joined


def _join(models: Sequence[Model]) -> Model:
  """One model with the results of several, which are of different sets."""
  first, *others = models
  results = dict(first.results)
  for model in others:
    for key, result in model.results.items():
      if key in results:
        raise UserError(
            f'--names: {first.name} has two results on {key}, of'
            f' {results[key].where} and {result.where}. Give them different'
            ' names, or one alone.'
        )
      results[key] = result
    if model.line != first.line:
      raise UserError(
          f'--lines has {first.name} on {first.line} and {model.line}; expected'
          ' one line.'
      )
  where = ', '.join(model.where for model in models)
  return dataclasses.replace(first, where=where, results=results)


def _with_codec(name: str, model: Model) -> str:
  every = {r.provenance.get('codec') or 'fp32' for r in model.results.values()}
  return name.replace('{codec}', ' '.join(sorted(every)))


def split_system(path: pathlib.Path) -> tuple[pathlib.Path, str]:
  """A folder or run, and the system after a colon, '' for none."""
  stem, _, system = str(path).rpartition(':')
  if system in result_files.SYSTEMS and not path.exists():
    return pathlib.Path(stem), system
  return path, ''


def distinct(
    names: Sequence[str], paths: Sequence[str | pathlib.Path]
) -> list[str]:
  """The names; repeated ones with their path, as far as paths differ."""
  whole = list(map(os.path.abspath, paths))
  again = [path for name, path in zip(names, whole) if names.count(name) > 1]
  # A path may be the start of another one.
  shared = len(os.path.commonpath(map(os.path.dirname, again))) if again else 0
  return [
      name if names.count(name) == 1
      else f'{name} ({path[shared:].lstrip(os.sep)})'
      for name, path in zip(names, whole)
  ]


def _read_judgements(path: pathlib.Path, level: int) -> _Judgements:
  if not path.is_file():
    raise UserError(f'--qrels: {path} is not a file.')
  source = hashlib.sha256(path.read_bytes()).hexdigest()
  try:
    grades = trec.read_qrels(path)
  except UserError as e:
    raise UserError(f'--qrels: {e}') from e
  qrels = {
      trec.field(query): {trec.field(hit): g for hit, g in own.items()}
      for query, own in grades.items()
  }
  return _Judgements(path, qrels, source, level)


def _find_run(
    path: pathlib.Path, system: str, judged: _Judgements
) -> tuple[str, pathlib.Path]:
  """The name of a system and its run: a file, or the run.trec of a folder."""
  if path.is_file():
    if path.name == RUN and (path.parent / result_files.METRICS).exists():
      model = result_files.read_model(path.parent)
      _check_copies(*model.results.values())
      return model.name, path
    return pathlib.Path(path.name.removesuffix('.gz')).stem, path
  model = result_files.read_model(path, baseline=system)
  runs = {pathlib.Path(r.where, RUN): r for r in model.results.values()}
  fitting = [
      run for run in runs
      if run.exists() and judged.qrels.keys() & trec.read_run(run).keys()
  ]
  if len(fitting) != 1:
    raise UserError(
        f'{path} has {len(fitting) or "no"} {RUN} with queries of --qrels'
        f' {judged.path}; expected one. Give one of its result folders:'
        f' {", ".join(str(run.parent) for run in runs)}.'
    )
  _check_copies(runs[fitting[0]])
  return model.name, fitting[0]


def _check_copies(result: Result) -> None:
  """Refuses a run of equal texts as one, which may lack judged ids."""
  if result.provenance.get('equal_texts'):
    raise UserError(
        f'{result.where} has equal texts as one, by the id of the first, which'
        ' --qrels may not judge. Evaluate it without --equal_texts.'
    )


def _measure_run(
    name: str, path: pathlib.Path, judged: _Judgements, k: int | None,
    asked: Sequence[str],
) -> Model:
  """The one result of a run."""
  run = trec.read_run(path)
  depth, what = result_files.run_depth(path, run), str(path)
  if k is not None and k < depth:
    depth, what = k, '--k'
  metrics.check_depth(depth, math.inf, asked, what)
  if k is not None:
    run = {
        query: {hit: hits[hit] for hit in sort_hits(hits)[:k]}
        for query, hits in run.items()
    }
  try:
    scores = metrics.evaluate_run(
        run, judged.qrels, str(path), judged.level, asked
    )
  except UserError as e:
    raise UserError(f'{path} with --qrels {judged.path}: {e}') from e
  key = Key('run', None, judged.path.stem, '')
  facts = {
      'qrels': judged.path.name,
      'source': judged.source,
      'depth': k or max(map(len, run.values())),
      **({'relevance_level': judged.level} if judged.level > 1 else {}),
  }
  result = Result(str(path), key, scores.means(), facts, lambda: scores)
  return Model(name, str(path), {key: result})

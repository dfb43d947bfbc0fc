"""Ranks a whole corpus exactly for every query of a split, and measures.

  dualenc evaluate --model_dir=my_model
  dualenc evaluate --model_dir=my_model --tasks=msmarco,multireqa
    --gin.DATA_ROOT=/data
  dualenc evaluate --model_dir=my_model --tasks=beir/scifact,beir/nfcorpus ...

The corpus is the task's own for that split, where it has one, else the
passages of the split. --tasks names files of tasks/, alone for all data sets
of a benchmark or with one of them; each is measured on its own split.

Writes metrics.json, per_query.tsv, run.trec, examples.jsonl and config.gin to
MODEL_DIR/evaluation/<task>-<split>, and the papers' tables of all that the
model was evaluated on to MODEL_DIR/evaluation/tables.md and tables.tex.
"""

from collections.abc import Sequence
import dataclasses
import logging
import pathlib
import shlex
from typing import Any

from dualenc_jax.commands import config, encode, model_dir, runtime
from dualenc_jax.data import Task
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.evaluation import evaluation, metrics as metrics_lib, trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import header as header_lib, Index
from dualenc_jax.index.places import Places
from dualenc_jax.index.source import Source
from dualenc_jax.io import device_memory, files
from dualenc_jax.io.progress import Progress
from dualenc_jax.results import folder as results, tables
from dualenc_jax.results.write import write_result
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.search.row_memory import empty_rows

# The rest is for the model, the queries and what search needs.
_SHARE_OF_MEMORY = 0.6
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Options:
  """How sets are evaluated.

  Attributes:
    k: hits a query in the run file.
    index_dir: keep the embeddings of the corpus there, and read them there if
      they are; None keeps them in memory.
    document_separator: rank documents by their best passage, see `Documents`.
  """

  k: int = 1000
  index_dir: pathlib.Path | None = None
  document_separator: str | None = None

  @property
  def depth(self) -> int:
    """Hits a query that metrics are of."""
    return max(self.k, metrics_lib.DEPTH)


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('evaluate', __doc__)
  model_dir.add_flags(parser)
  parser.add_argument(
      '--tasks',
      help='comma-separated, such as msmarco,beir/scifact,multireqa; by default'
      ' the task that the model was trained on, or that of --gin_file',
  )
  parser.add_argument(
      '--split', help='by default what the benchmark measures, else test'
  )
  parser.add_argument(
      '--skip_missing',
      action='store_true',
      help='leave out --tasks whose files are not there',
  )
  parser.add_argument(
      '--k', type=int, default=1000, help='hits a query in the run file'
  )
  parser.add_argument(
      '--index_dir',
      help='keep the embeddings of the corpus on disk, for corpora larger than'
      ' the memory; those that `dualenc encode` left there are used',
  )
  parser.add_argument(
      '--max_passage',
      action='store_true',
      help='rank documents by the best of their passages, whose ids are the'
      " document's, a separator and a number; judged are documents",
  )
  parser.add_argument(
      '--document_separator', help='with --max_passage; # by default'
  )
  parser.add_argument('--output_dir', help='where the files go')
  args = config.parse_args(parser, argv)
  if args.k < 1:
    raise UserError(f'--k is {args.k}; expected at least 1.')
  separator = args.document_separator
  if separator is not None and not args.max_passage:
    raise UserError('--document_separator is for --max_passage: give both.')
  if args.max_passage and separator is None:
    separator = '#'
  runtime.start()
  names = [name.strip() for name in (args.tasks or '').split(',')]
  names = [name for name in names if name]
  if args.tasks is not None and not names:
    raise UserError(f'--tasks={args.tasks} names no task; leave it out.')
  task_files = {f'tasks/{name.partition("/")[0]}.gin' for name in names}
  model = model_dir.load_from_args(args, before=sorted(task_files))
  chosen = sets_of(model.experiment, names, args.split)
  if names:
    chosen = available(chosen, args.skip_missing)
  output = pathlib.Path(args.output_dir or default_output(args.model_dir))
  for task, split in chosen:
    own = dataclasses.replace(
        model,
        experiment=dataclasses.replace(model.experiment, task=task),
    )
    name = result_name(task, split, separator is not None)
    # A single set is written right where the user says.
    alone = args.output_dir is not None and len(chosen) == 1
    folder = output if alone else output / name
    index = args.index_dir and pathlib.Path(args.index_dir)
    if index and len(chosen) > 1:
      index /= name
    print(f'{task.label}, split {split}:')
    command = shlex.join(['dualenc', 'evaluate', *argv])
    found = evaluate(
        own, split, folder, command, Options(args.k, index, separator)
    ).metrics
    for metric, value in found.items():
      print(f'  {metric:<12} {value:.4f}')
    print(f'  Written to {folder}.', flush=True)
  if args.output_dir is None:
    model_folder = pathlib.Path(args.model_dir)
    tables.write_tables(output, [results.read_model(model_folder)])
    print(f'Tables: {output / "tables.md"}, {output / "tables.tex"}.')


def default_output(folder: str | pathlib.Path) -> pathlib.Path:
  """Where the results of a model_dir are."""
  return pathlib.Path(folder) / 'evaluation'


def result_name(task: Task, split: str, of_documents: bool = False) -> str:
  """The folder of a task and split below `default_output`."""
  label = task.label + results.DOCUMENTS * of_documents
  return f'{label}-{split}'.replace('/', '-')


def sets_of(
    experiment: Experiment, names: Sequence[str], split: str | None
) -> list[tuple[Task, str]]:
  """The tasks to evaluate on, and the split of each.

  Args:
    experiment: whose task is meant where no names are given.
    names: 'beir', 'beir/scifact', ...; their gin files have been loaded.
    split: of all of them; None for the one that each is measured on.
  """
  if not names:
    task = experiment.task
    # Of a mixture only a split says which of its tasks is meant.
    if isinstance(task, Task):
      split = split or task.measured_split()
    split = split or 'validation'
    return [(task.for_split(split), split)]
  tasks = {}
  for name in names:
    task_name, _, dataset = name.partition('/')
    task = config.build(Task, scope=task_name)
    for one in task.of_datasets(dataset or None):
      tasks[one.label] = one
  return [(task, split or task.measured_split()) for task in tasks.values()]


def available(
    chosen: Sequence[tuple[Task, str]], skip_missing: bool
) -> list[tuple[Task, str]]:
  """Those whose files are there, before hours are spent on some of them.

  Raises:
    UserError: files are missing and are not to be skipped, or all are.
  """
  found, missing = [], {}
  for task, split in chosen:
    try:
      task.check_split(split)
      corpus_split = task.corpus_split(split)
      if corpus_split is not None:
        task.check_split(corpus_split)
      found.append((task, split))
    except SourceUnavailable as e:
      missing[task.label] = e
  if missing and (not skip_missing or not found):
    first = next(iter(missing.values()))
    others = f' Missing: {", ".join(missing)}.' if len(missing) > 1 else ''
    hint = ' Leave out what is missing with --skip_missing.' if found else ''
    raise UserError(f'{first}{others}{hint}')
  if missing:
    _LOG.warning('Left out, files are missing: %s.', ', '.join(missing))
  return found


def evaluate(
    model: model_dir.TrainedModel,
    split: str,
    output: pathlib.Path,
    command: str,
    options: Options = Options(),
) -> Evaluation:
  """Evaluates on a split of the model's task and writes the results.

  Args:
    model: whose towers and task.
    split: of the task.
    output: the result folder.
    command: the command line that makes this result.
    options: how.
  """
  retrieval_set = retrieval_set_of(
      model.experiment, split, options.document_separator
  )
  files.make_folder(output, 'another --output_dir')
  # Before hours of encoding, not after.
  trec.check_ids('query id', retrieval_set.query_ids)
  trec.check_ids('id', retrieval_set.ranked_ids)
  queries = evaluation.encode_queries(
      model.embedder, model.params, retrieval_set
  )
  passages = passages_of(model, retrieval_set, options.index_dir)
  result = evaluation.rank(queries, passages, retrieval_set, options.depth)
  described = describe(model, split, retrieval_set, options)
  described |= {'embedding_dtype': str(passages.dtype), 'command': command}
  files.write(output / model_dir.CONFIG, config.operative_config())
  write_result(output, retrieval_set, result, options.k, described)
  return result


def passages_of(
    model: model_dir.TrainedModel,
    retrieval_set: RetrievalSet,
    index_dir: pathlib.Path | None,
) -> Any:
  """Embeddings of the corpus, in memory or in an index.

  Raises:
    UserError: they do not fit the memory or are not finite, or the index is of
      something else.
  """
  corpus = retrieval_set.corpus
  if index_dir is not None:
    source = Source(corpus.cache, corpus.rows, 'passage')
    return _indexed(model, source, index_dir)
  size, dim = len(corpus), encode.embedding_dim(model)
  needed, there = 4 * size * dim, device_memory.machine_memory()
  if needed > _SHARE_OF_MEMORY * there:
    raise UserError(
        f'The embeddings of {size:,} passages need {needed / 2**30:.1f} GiB,'
        f' and this machine has {there / 2**30:.1f} GiB. Keep them on disk with'
        ' --index_dir.'
    )
  embeddings = empty_rows(size, dim)
  with Progress('Encoding', size, 'passages') as progress:
    # By the shards of an index: rounding may depend on what is encoded at once.
    for start in range(0, size, header_lib.SHARD_SIZE):
      rows = corpus.rows[start : start + header_lib.SHARD_SIZE]
      part = embeddings[start : start + len(rows)]
      for positions, found in model.embedder.batches(
          'encode_passage', model.params, corpus.cache.passage_tokens, rows
      ):
        part[positions] = found
        progress(len(positions))
      evaluation.check_finite(part, 'passage', corpus.ids, start)
  return embeddings


def _indexed(
    model: model_dir.TrainedModel, source: Source, folder: pathlib.Path
) -> Any:
  """Embeddings of an index, made where it is not there."""
  layout = {'dtype': 'float32', 'shard_size': header_lib.SHARD_SIZE}
  places = Places(folder)
  for path in (places.readable(), places.partial):
    if not (path / header_lib.FILE).exists():
      continue
    header = header_lib.Header.read(path)
    layout = {name: getattr(header, name) for name in layout}
    wrong = header.differences(encode.make_header(model, source, **layout))
    if wrong:
      raise UserError(
          f'--index_dir {path} is an index of something else:'
          f' {"; ".join(wrong)}. Give another folder: the corpus is encoded'
          ' there first.'
      )
    break
  encode.encode(model, source, folder, **layout).finish()
  return Index.open(folder).embeddings


def retrieval_set_of(
    experiment: Experiment, split: str, document_separator: str | None = None
) -> RetrievalSet:
  """The queries of a split and what they are ranked over."""
  task = experiment.task.for_split(split)
  if document_separator is not None:
    task = task.judging_documents()
    experiment = dataclasses.replace(experiment, task=task)
  corpus_split = task.corpus_split(split)
  return RetrievalSet.from_cache(
      experiment.cache(split),
      None if corpus_split is None else experiment.cache(corpus_split),
      task.answer_text(),
      task.self_hits(),
      document_separator,
  )


def describe(
    model: model_dir.TrainedModel,
    split: str,
    retrieval_set: RetrievalSet,
    options: Options,
) -> dict[str, Any]:
  """What numbers depend on, for metrics.json."""
  task = model.experiment.task.for_split(split)
  label = task.label
  if options.document_separator is not None:
    label += results.DOCUMENTS
  return {
      'task': task.name,
      'dataset': task.options.get('dataset'),
      'label': label,
      'split': split,
      'queries': len(retrieval_set.query_ids),
      'passages': len(retrieval_set.corpus),
      'k': options.k,
      'depth': options.depth,
      'document_separator': options.document_separator,
      'source': retrieval_set.cache.header['source'],
      'corpus': {
          name: retrieval_set.corpus.cache.header[name]
          for name in ('split', 'source')
      },
      **model.provenance,
  }

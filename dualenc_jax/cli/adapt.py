"""Adapts a dual encoder to a corpus that has no queries: GPL, or GenQ.

  dualenc adapt --model_dir=my_model --corpus=scifact/ --generator=doc2query
    --teacher=cross_encoder --output_dir=adapted
  dualenc adapt --model_dir=my_model --corpus=scifact/ --generator=doc2query
    --output_dir=adapted

With --teacher the model learns the teacher's margins (recipes/gpl.gin); without
it, every generated query counts as right (recipes/genq.gin). Each stage has a
folder in OUTPUT_DIR: queries, labels (GPL only) and adapted, the new model.
Where --corpus has queries and qrels, the stages before, after and comparison
measure both models on it; --source_split measures what is forgotten of the task
that the model was trained on. Stages whose inputs are the same are skipped; a
killed one continues. --replace=queries=FOLDER puts your files in place of what
a stage makes. Every macro of the recipe is a flag:
--gin.QUERIES_PER_PASSAGE=3, --gin.ADAPT_STEPS=2000.
"""

import argparse
from collections.abc import Sequence
import pathlib
import shlex

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import config, flags, recipe
from dualenc_jax.utils.errors import expect, UserError


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  corpus, model = args.corpus, args.model_dir
  layout = "a folder in BEIR's layout, with queries and qrels to measure on"
  expect(corpus.is_dir(), '--corpus', str(corpus), layout)
  if not (model / 'config.gin').is_file():
    raise UserError(
        f'--model_dir is {model}, which has no config.gin; expected a folder of'
        ' `dualenc train`.'
    )
  out = pathlib.Path(args.output_dir).resolve()
  if corpus.resolve() in (out, *out.parents):
    raise UserError(
        f'--output_dir is {out}, inside the folder of the corpus. Give a folder'
        ' outside of it.'
    )
  files = [corpus / name for name in ('corpus.jsonl', 'corpus.jsonl.gz')]
  file = next((path for path in files if path.is_file()), None)
  if file is None:
    raise UserError(f'There is no {files[0]} (or {files[1].name}).')
  name = 'genq' if args.teacher is None else 'gpl'
  given = {
      'generator': (args.generator, checkpoint_reader.GENERATOR),
      'teacher': (args.teacher, checkpoint_reader.CROSS_ENCODER),
  }
  given = {stage: pair for stage, pair in given.items() if pair[0] is not None}
  replaced = [text.partition('=')[0] for text in args.replace]
  if 'generator' not in given and 'queries' not in replaced:
    raise UserError(
        'Give --generator, or your own queries with --replace=queries=FOLDER.'
    )
  # Before hours are spent on the stages that do not need them.
  for stage, (path, kind) in given.items():
    place = pathlib.Path(path).expanduser()
    if not place.exists():
      raise UserError(f'--{stage} is {path}, which does not exist.')
    if checkpoint_reader.is_model_dir(place):
      facts = checkpoint_reader.read_facts(place)
      checkpoint_reader.check_kind(facts, kind, path)
  until = _last_stage(args)
  gin_files = f'recipes/{name}.gin', *args.gin_file
  bindings = [f'--gin.{b.replace(" = ", "=", 1)}' for b in args.gin_bindings]
  if args.source_split:
    bindings.insert(0, f'--gin.SOURCE_SPLIT={args.source_split}')
  recipe.main([
      *(f'--gin_file={file}' for file in gin_files),
      *(f'--gin_search_paths={path}' for path in args.gin_search_paths),
      f'--output_dir={args.output_dir}', f'--replace=source={model}',
      *(f'--replace={stage}={path}' for stage, (path, _) in given.items()),
      *(f'--replace={text}' for text in args.replace),
      f'--gin.CORPUS={str(corpus)!r}', f'--gin.CORPUS_FILE={str(file)!r}',
      f'--gin.SPLIT={_split(args)}', *(f'--until={name}' for name in until),
      *(['--list'] if args.list else []), *bindings,
  ])
  if not args.list:
    new = pathlib.Path(args.output_dir, 'adapted')
    words = ['dualenc', 'encode', f'--model_dir={new}', f'--corpus={corpus}']
    print(f'The adapted model is {new}. Next: {shlex.join(words)}')


def _split(args: argparse.Namespace) -> str:
  """The split to measure on; BEIR's dev is the split validation."""
  split = args.split or 'test'
  return {'dev': 'validation'}.get(split, split)


def _last_stage(args: argparse.Namespace) -> list[str]:
  """The last stage that can run, unless all can: by the qrels of the corpus."""
  split = _split(args)
  qrels = {'validation': 'dev'}.get(split, split)
  folder = args.corpus / 'qrels'
  if any(folder.glob(f'{qrels}.tsv*')):
    return [] if args.source_split else ['comparison']
  for flag, value in (
      ('source_split', args.source_split), ('split', args.split)
  ):
    if value is not None:
      raise UserError(
          f'--{flag} is given, but {args.corpus} has no qrels of {qrels} to'
          ' measure on. Leave it out.'
      )
  print(f'{args.corpus} has no qrels of {qrels}: nothing is measured.')
  return ['adapted']


def make_parser() -> flags.Parser:
  parser = config.make_parser('adapt', __doc__)
  add = parser.add_argument
  add('--model_dir', required=True, type=flags.path,
      help='the dual encoder to adapt')
  add('--corpus', required=True, type=flags.path, metavar='FOLDER',
      help="a corpus in BEIR's layout")
  add('--generator', metavar='MODEL',
      help='a query generator, as for `dualenc generate`')
  add('--teacher', metavar='MODEL_DIR | FILE',
      help='a cross-encoder, as for `dualenc mine`; without it, GenQ')
  add('--output_dir', default='adapted',
      help='folder of the stages (default %(default)s)')
  add('--split',
      help='split of the corpus to measure on (default test, if it exists)')
  add('--source_split',
      help="split of the model's own training task to measure, too")
  recipe.add_shared_flags(parser)
  return parser

"""Claims of the papers at a size that a CPU trains in minutes.

  python benchmarks/claims.py losses --data=../shared/data --work_dir=claims

Each claim is a grid of `dualenc recipe`, trained from scratch on small sets of
pairs with several seeds; it goes on where it was stopped. p is of the paired
randomization test over queries, of values that are means over seeds.

  losses         SamToNe and PAIR against in-batch softmax, SDE and ADE-SPL
  towers         SamToNe on both towers, with few unique passages, masked or not
  architectures  ADE, ADE-STE, ADE-FTE, ADE-SPL and SDE, grown from one bag
  sizes          SamToNe against softmax by width of a bag
  students       a bag on the vectors of --teacher, with labels and without
                 (--sets=squad_nqg,medquad)
"""

import argparse
import collections
from collections.abc import Iterable, Mapping, Sequence
import gzip
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np

from dualenc_jax.evaluation.results import result_files, significance

_DUALENC = [sys.executable, '-m', 'dualenc_jax']
_HEADER = 'from __gin__ import dynamic_registration\n\n'
# Longest texts, in characters; the models read 128 tokens.
_LENGTH = 600
# Questions of SQuAD, over their own sentences.
_TESTED = 3000
# The bags of the other claims are 1,024 wide.
_WIDTHS = 128, 512
# Losses that learn vectors: without labels, and beside the softmax.
_TAUGHT = 'embed_distill', 'in_batch_distill'
_RUN = ['--gin.RUN=["runs/from_scratch.gin"]', '--gin.CHECKPOINT=None']
_BAG = ['--gin.MODEL=models/{SIZE}.gin', '--sweep=SIZE=bag']


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('claim', choices=list(_CLAIMS))
  parser.add_argument('--data', type=pathlib.Path, required=True,
                      help='folder with squad_nqg/ and medquad/')
  parser.add_argument('--work_dir', type=pathlib.Path, required=True)
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--sets', default='python_code,squad_nqg,medquad')
  parser.add_argument('--steps', type=int, default=300)
  parser.add_argument('--teacher', help='of `students`: st:FOLDER or a model')
  args = parser.parse_args()
  args.work_dir = args.work_dir.absolute()
  args.work_dir.mkdir(parents=True, exist_ok=True)
  _CLAIMS[args.claim](args)


def losses(args: argparse.Namespace) -> None:
  for name in args.sets.split(','):
    folder = _run(
        args, 'losses', name, 'recipes/samtone.gin',
        [*_BAG, '--sweep=ARCHITECTURE=sde,ade_spl',
         '--sweep=LOSS=softmax,samtone,pair', '--until=maps'],
    )
    _report(name, folder.glob('losses_*'))
    for space in sorted(folder.glob('maps_*/analysis.json')):
      _print_space(space)


def towers(args: argparse.Namespace) -> None:
  """SamToNe's table 3, on sentences that have three questions or more."""
  folder = args.work_dir / 'gin' / 'losses'
  for name in ('softmax', 'samtone', 'samtone_both'):
    _gin(folder / f'{name}.gin', f"include 'losses/{name}.gin'\n")
    _gin(
        folder / f'{name}_unmasked.gin',
        'from dualenc_jax import losses\n\n'
        f"include 'losses/{name}.gin'\n\n"
        'losses.Similarity.mask_duplicates = False\n',
    )
  names = 'softmax', 'samtone', 'samtone_both'
  every = [*names, *(f'{name}_unmasked' for name in names)]
  grid = _run(
      args, 'towers', 'squad_few', 'recipes/samtone.gin',
      [*_BAG, '--sweep=ARCHITECTURE=ade_spl', f'--sweep=LOSS={",".join(every)}',
       f'--gin.LOSS_FILE={folder}/{{LOSS}}.gin', '--until=losses'],
  )
  _report('squad_nqg, repeated sentences', grid.glob('losses_*'))


def architectures(args: argparse.Namespace) -> None:
  """Dong's tables 2, figure 2: all start from the bag of one training."""
  bag = args.work_dir / 'bag'
  files = _prepare(args, 'medquad')
  if not (bag / 'checkpoints' / str(args.steps)).exists():
    texts = args.work_dir / 'medquad' / 'documents.jsonl'
    lines = map(json.loads, files['TRAIN_FILE'].read_text().splitlines())
    _write(texts, (
        {'_id': str(i), 'title': '', 'text': line['passage']}
        for i, line in enumerate(lines)
    ))
    _dualenc(
        'train', '--gin_file=runs/from_scratch.gin', f'--model_dir={bag}',
        f'--gin.DOCUMENTS={texts}', f'--gin.VOCABULARY={files["VOCABULARY"]}',
        '--gin.VOCAB_SIZE=8000', f'--gin.STEPS={args.steps}',
    )
  # As in the paper, projections are drawn anew.
  run = _gin(
      args.work_dir / 'gin' / 'fresh_projections.gin',
      "include 'runs/from_scratch.gin'\n\n"
      "INITIAL_CHECKPOINT_RULES = (('(passage_)?projection/.*', None),)\n"
      "INITIAL_CHECKPOINT_DROP = ('projection/.*',)\n",
  )
  folder = _run(
      args, 'architectures', 'medquad', 'recipes/dual_encoders.gin',
      [*_BAG, f'--gin.RUN=["{run}"]', f'--gin.CHECKPOINT={bag}',
       '--sweep=ARCHITECTURE=ade,ade_ste,ade_fte,ade_spl,sde'],
  )
  _report('medquad', folder.glob('architectures_*'))
  for space in sorted(folder.glob('maps_*/analysis.json')):
    _print_space(space)


def sizes(args: argparse.Namespace) -> None:
  folder = args.work_dir / 'gin' / 'models'
  for width in _WIDTHS:
    _gin(
        folder / f'bag_{width}.gin',
        'from dualenc_jax import models\n\n'
        "include 'models/bag.gin'\n\n"
        f'models.TokenEmbedder.features = {width}\n'
        f'models.Projection.features = {width}\n',
    )
  names = ','.join(f'bag_{width}' for width in _WIDTHS)
  for name in args.sets.split(','):
    grid = _run(
        args, 'sizes', name, 'recipes/samtone.gin',
        [f'--gin.MODEL={folder}/{{SIZE}}.gin', f'--sweep=SIZE={names}',
         '--sweep=ARCHITECTURE=sde', '--sweep=LOSS=softmax,samtone',
         '--until=sizes'],
    )
    for width in _WIDTHS:
      _report(f'{name}, width {width}', grid.glob(f'losses_*bag_{width}*'))


def students(args: argparse.Namespace) -> None:
  """A teacher's vectors of the training texts against their labels."""
  for name in args.sets.split(','):
    files = _prepare(args, name)
    vectors = {
        side: _vectors(args, files['TRAIN_FILE'], side)
        for side in ('query', 'passage')
    }
    macros = (
        f"TEACHER_QUERIES = '{vectors['query']}'\n"
        f"TEACHER_PASSAGES = '{vectors['passage']}'\n"
    )
    folder = args.work_dir / 'gin' / f'students-{name}'
    _gin(folder / 'softmax.gin', "include 'losses/softmax.gin'\n")
    for loss in _TAUGHT:
      _gin(folder / f'{loss}.gin', f"include 'losses/{loss}.gin'\n{macros}")
    every = ','.join(['softmax', *_TAUGHT])
    grid = _run(
        args, 'students', name, 'recipes/samtone.gin',
        [*_BAG, '--sweep=ARCHITECTURE=sde', f'--sweep=LOSS={every}',
         f'--gin.LOSS_FILE={folder}/{{LOSS}}.gin', '--until=losses'],
    )
    _report(name, grid.glob('losses_*'))


_CLAIMS = {
    'losses': losses, 'towers': towers, 'architectures': architectures,
    'sizes': sizes, 'students': students,
}


def _vectors(
    args: argparse.Namespace, pairs: pathlib.Path, side: str
) -> pathlib.Path:
  """The index of the teacher's vectors of a side of the pairs."""
  texts = pairs.with_name(f'{side}.jsonl')
  index = pairs.with_name(f'{side}_vectors')
  if not index.exists():
    distinct = dict.fromkeys(row[side] for row in _rows(pairs))
    _write(texts, (
        {'_id': str(i), 'text': text} for i, text in enumerate(distinct)
    ))
    _dualenc(
        'encode', f'--model_dir={args.teacher}', f'--corpus={texts}',
        f'--tower={side}', f'--index_dir={index}',
    )
  return index


def _run(
    args: argparse.Namespace, claim: str, name: str, recipe: str,
    flags: Sequence[str],
) -> pathlib.Path:
  """Runs a grid on a set; returns its folder."""
  folder = args.work_dir / f'{claim}-{name}'
  task = 'python_code' if name == 'python_code' else 'pairs'
  values = {'STEPS': args.steps, **_prepare(args, name)}
  _dualenc(
      'recipe', f'--gin_file={recipe}', f'--output_dir={folder}', *_RUN, *flags,
      f'--sweep=SET={task}', f'--sweep=SEED={args.seeds}',
      *(f'--gin.{macro}={value}' for macro, value in values.items()),
  )
  return folder


def _prepare(args: argparse.Namespace, name: str) -> Mapping[str, pathlib.Path]:
  """Files and vocabulary of a set, by macro; written unless they exist."""
  if name == 'python_code':
    return {'VOCABULARY': pathlib.Path('python_code_8k')}
  folder = args.work_dir / name
  files = {
      'TRAIN_FILE': folder / 'train.jsonl', 'TEST_FILE': folder / 'test.jsonl'
  }
  if not files['TEST_FILE'].exists():
    folder.mkdir(exist_ok=True)
    train, test = _SETS[name](args.data)
    _write(files['TRAIN_FILE'], train)
    _write(files['TEST_FILE'], test)
  vocabulary = folder / 'vocabulary.model'
  if not vocabulary.exists():
    _dualenc(
        'data', 'vocabulary', str(files['TRAIN_FILE']),
        f'--output_file={vocabulary}', '--size=8000',
    )
  return {**files, 'VOCABULARY': vocabulary}


_Pairs = list[dict[str, str]]


def _squad(data: pathlib.Path) -> tuple[_Pairs, _Pairs]:
  train, test = (
      [_pair(row['question'], row['sentence']) for row in _rows(data / name)]
      for name in ('squad_nqg/pairs.test.jsonl', 'squad_nqg/pairs.dev.jsonl')
  )
  test = test[:_TESTED]
  held_out = {row['passage'] for row in test}
  return [row for row in train if row['passage'] not in held_out], test


def _squad_few(data: pathlib.Path) -> tuple[_Pairs, _Pairs]:
  train, test = _squad(data)
  counts = collections.Counter(row['passage'] for row in train)
  return [row for row in train if counts[row['passage']] >= 3], test


def _medquad(data: pathlib.Path) -> tuple[_Pairs, _Pairs]:
  """A tenth of the subjects is held out, by their hash."""
  parts: tuple[_Pairs, _Pairs] = [], []
  for row in _rows(data / 'medquad/pairs.jsonl.gz'):
    digest = hashlib.sha256(row['focus'].lower().encode()).digest()
    parts[digest[0] < 26].append(_pair(row['question'], row['answer']))
  return parts


_SETS = {'squad_nqg': _squad, 'squad_few': _squad_few, 'medquad': _medquad}


def _pair(query: str, passage: str) -> dict[str, str]:
  return {'query': query, 'passage': passage[:_LENGTH]}


def _rows(path: pathlib.Path) -> Iterable[Mapping[str, str]]:
  with (gzip.open if path.suffix == '.gz' else open)(path, 'rt') as file:
    yield from map(json.loads, file)


def _write(path: pathlib.Path, rows: Iterable[Mapping[str, str]]) -> None:
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def _gin(path: pathlib.Path, text: str) -> pathlib.Path:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(_HEADER + text)
  return path


def _dualenc(*argv: str) -> None:
  subprocess.run([*_DUALENC, *argv], check=True)


def _report(title: str, comparisons: Iterable[pathlib.Path]) -> None:
  """Prints MRR of each system by seed, and p of means over seeds."""
  groups: dict[str, dict[str, list[Mapping[str, float]]]] = {}
  for folder in sorted(comparisons):
    if '.' in folder.name:  # A recipe has set it aside.
      continue
    seedless = folder.name.rpartition('_')[0]
    by_name = groups.setdefault(seedless, {})
    content = json.loads((folder / 'comparison.json').read_text())
    for system in (content['baseline'], *content['models']):
      (result,) = result_files.read_model(
          pathlib.Path(system['where'])
      ).results.values()
      by_name.setdefault(system['name'], []).append(
          result.per_query().column('MRR')
      )
  for group, by_name in groups.items():
    baseline, *_ = by_name
    print(f'\n{title}, {group}\n| | MRR by seed | difference | p | verdict |')
    print('|---|---|---|---|---|')
    first = _over_seeds(by_name[baseline])
    for name, seeds in by_name.items():
      values = ' '.join(f'{np.mean([*s.values()]):.4f}' for s in seeds)
      mean = _over_seeds(seeds)
      difference = float((mean - first).mean())
      p = significance.randomization_test(first, mean)
      sign = 'ahead' if difference > 0 else 'behind'
      verdict = sign if p < 0.05 else 'not shown'
      cells = f'{difference:+.4f} | {p:.4f} | {verdict}'
      print(f'| {name} | {values} | {"" if name == baseline else cells} |')


def _print_space(path: pathlib.Path) -> None:
  """Prints the numbers of the embedding space of each model."""
  for model in json.loads(path.read_text())['models']:
    numbers = (f'{n} {x:.3f}' for n, x in model['numbers'].items())
    print(f'{path.parent.name}, {model["name"]}: {", ".join(numbers)}')


def _over_seeds(seeds: Sequence[Mapping[str, float]]) -> np.ndarray:
  """The mean over seeds of the value of each query, [Q]."""
  return np.mean([[s[query] for query in seeds[0]] for s in seeds], axis=0)


if __name__ == '__main__':
  main()

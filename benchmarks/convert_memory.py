"""Peak memory of `dualenc convert` beside the size of the checkpoint.

  python benchmarks/convert_memory.py --folder=FOLDER --vocabulary=spiece.model

Writes a random T5.1.1 dual encoder of 17 layers, 1 GB in float32, once, as a
Hugging Face folder with its projection; converts it to every form, and each of
those that this library reads back to a model_dir. Each conversion is a process
of its own, whose peak is what the kernel says (ru_maxrss): with the libraries
in it, with the 64 texts encoded on all sides. `imports` is the peak of a
process that only imports what such a conversion does. `--layers` makes another
size.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np

SIZES = {'features': 1024, 'num_heads': 16, 'head_dim': 64, 'mlp_dim': 2816}
_OURS = (
    'import dualenc_jax.commands.convert, orbax.checkpoint, jax;'
    ' jax.numpy.ones(3).block_until_ready();'
)
_TRANSFORMERS = (
    'import torch, transformers; transformers.T5EncoderModel;'
    ' transformers.AutoTokenizer;'
)
# What a conversion imports by the libraries that it compares with.
IMPORTS = {
    'none': _OURS,
    'hf': _OURS + _TRANSFORMERS,
    'sentence_transformers': (
        _OURS + _TRANSFORMERS + 'import sentence_transformers'
    ),
}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--folder', required=True, help='for all of the files')
  parser.add_argument('--layers', type=int, default=17)
  parser.add_argument(
      '--vocabulary', required=True, help='a SentencePiece file of 32,000'
  )
  parser.add_argument('--to', nargs='*', help='forms; all by default')
  args = parser.parse_args()
  folder = pathlib.Path(args.folder)
  source = folder / f'source-{args.layers}'
  if not source.exists():
    folder.mkdir(parents=True, exist_ok=True)
    run(sys.executable, __file__, 'make', str(source), args.vocabulary,
        str(args.layers))
  size = sum(
      file.stat().st_size for file in source.glob('*.safetensors')
  )
  imports = {
      library: run(sys.executable, '-c', code)['peak']
      for library, code in IMPORTS.items()
  }
  print(json.dumps({'checkpoint': size, 'imports': imports}))
  from dualenc_jax.commands import convert

  for form in args.to or convert.forms():
    report(source, form, folder / form, size, imports)
    if form != 'hf':
      report(folder / form, 'safetensors', folder / 'back', size, imports)
    shutil.rmtree(folder / form)


def report(source, form, out, size, imports) -> None:
  """Converts once and prints a line of JSON."""
  origin = 'hf' if source.name.startswith('source') else source.name
  base = max(imports.get(name, imports['none']) for name in (origin, form))
  done = run(
      sys.executable,
      *('-m', 'dualenc_jax', 'convert', str(source)),
      *(f'--to={form}', f'--out={out}'),
  )
  print(
      json.dumps({
          'from': source.name,
          'to': form,
          'peak': done['peak'],
          'peak / checkpoint': round(done['peak'] / size, 3),
          'above imports / checkpoint': round(
              (done['peak'] - base) / size, 3
          ),
          'seconds': round(done['seconds'], 1),
          'differences': done['lines'],
      }),
      flush=True,
  )
  if out.name == 'back':
    shutil.rmtree(out)


def run(*argv: str) -> dict:
  """Runs a process; its peak of resident memory in bytes, and its time."""
  started = time.perf_counter()
  process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
  output = process.stdout.read()
  _, status, usage = os.wait4(process.pid, 0)
  if status:
    raise SystemExit(f'{argv} failed: {output}')
  return {
      'peak': usage.ru_maxrss * 1024,
      'seconds': time.perf_counter() - started,
      'lines': [
          line.split(': ', 1)[1]
          for line in output.splitlines()
          if 'largest cosine difference' in line
      ],
  }


def make(folder: pathlib.Path, vocabulary: str, layers: int) -> None:
  """Writes the random model, tensor by tensor."""
  from dualenc_jax import models
  from dualenc_jax.interop import hugging_face
  from dualenc_jax.interop.weights import shapes_of, Usage, Weights
  from dualenc_jax.tensor_files.tensors import Tensor

  encoder = models.T5Encoder(
      layers, SIZES['num_heads'], SIZES['head_dim'], SIZES['mlp_dim']
  )
  model = models.DualEncoder(
      models.TokenEmbedder(32128, SIZES['features']),
      encoder,
      models.Projection(768),
  )

  def tensor(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    def load():
      values = np.random.default_rng(seed).standard_normal(shape, np.float32)
      if len(shape) == 1:
        return 1 + 0.1 * values
      # As T5 initialises; the attention of others is sharp, and its rounding.
      scale = shape[0] ** -0.5 if 'kernel' in name else 1.0
      return values * scale / (8 if 'query' in name else 1)

    return Tensor(name, shape, load)

  tensors = {
      name: tensor(i, name, shape)
      for i, (name, shape) in enumerate(shapes_of(model).items())
  }
  usage = Usage(pathlib.Path(vocabulary), None, 64, 256)
  folder.mkdir()
  hugging_face.write(
      Weights('random', 'memory', tensors, encoder, usage=usage), folder
  )


if __name__ == '__main__':
  if sys.argv[1:2] == ['make']:
    make(pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
  else:
    main()

"""A run without gin: python examples/train_in_python.py PAIRS.jsonl MODEL_DIR.

The file has a query and a passage a line, {"query": ..., "passage": ...}. The
model is a bag of pieces; num_layers=12 and so on make a T5. Called again, it
goes on where it was stopped.
"""

import sys

import optax

import dualenc_jax as dj
from dualenc_jax.data import readers


def experiment(
    task: dj.data.Dataset, model_dir: str, loss: dj.losses.Loss,
    steps: int = 100,
) -> dj.training.Experiment:
  vocabulary = dj.data.Vocabulary('python_code_8k')
  model = dj.models.DualEncoder(
      dj.models.TokenEmbedder(dj.data.vocab_size(vocabulary), features=256),
      dj.models.T5Encoder(num_layers=0, num_heads=4, head_dim=64, mlp_dim=512),
      dj.models.Projection(features=256),
  )
  rate = optax.linear_schedule(3e-2, 0.0, steps)
  return dj.training.Experiment(
      model_dir=model_dir,
      objective=dj.objectives.Contrastive(
          model, loss, dj.losses.Similarity(temperature=0.1)
      ),
      task=task,
      tokenizer=dj.data.Tokenizer(
          vocabulary, query_length=32, passage_length=64
      ),
      optimizer=dj.training.Optimizer(optax.adafactor(rate), rate),
      partitioner=dj.training.Partitioner(),
      steps=steps,
      batch_size=32,
      eval_every=0,
  )


if __name__ == '__main__':
  pairs, model_dir = sys.argv[1:]
  task = readers.Pairs(train=pairs)
  ended = dj.training.train(experiment(task, model_dir, dj.losses.SamToNe()))
  print(f'{model_dir} has {ended.step} steps.')

"""Small random Gemma encoders as transformers saves them, and a tokenizer."""

import argparse
import io
import json
import pathlib
import shutil

import sentencepiece
import torch
import transformers
from transformers.models.t5gemma2 import modeling_t5gemma2 as t5gemma2

ROWS = 512
SIZES = {
    'hidden_size': 24, 'intermediate_size': 40, 'head_dim': 8,
    'num_hidden_layers': 3, 'num_attention_heads': 3, 'num_key_value_heads': 1,
    'sliding_window': 6, 'query_pre_attn_scalar': 8, 'vocab_size': ROWS,
    'layer_types': [
        'sliding_attention', 'full_attention', 'sliding_attention',
    ],
}
VISION = {
    'model_type': 'siglip_vision_model', 'hidden_size': 4, 'patch_size': 2,
    'intermediate_size': 4, 'num_hidden_layers': 1, 'num_attention_heads': 1,
    'image_size': 4,
}
SCALED = {
    'sliding_attention': {'rope_type': 'default', 'rope_theta': 5_000.0},
    'full_attention': {
        'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 1_000_000.0
    },
}


def write_vocabulary(path: pathlib.Path, **options) -> pathlib.Path:
  """A BPE model with Gemma's ids, spaces as they are, and runs of them."""
  texts = pathlib.Path(argparse.__file__).read_text().splitlines()
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts), model_writer=model, minloglevel=2, **{
          'model_type': 'bpe', 'vocab_size': ROWS, 'byte_fallback': True,
          'pad_id': 0, 'eos_id': 1, 'bos_id': 2, 'unk_id': 3,
          'pad_piece': '<pad>', 'eos_piece': '<eos>', 'bos_piece': '<bos>',
          'normalization_rule_name': 'identity', 'add_dummy_prefix': False,
          'remove_extra_whitespaces': False, 'num_threads': 1,
          'user_defined_symbols': ['\n\n', '▁▁', '▁▁▁▁', '<start_of_turn>'],
          **options,
      },
  )
  path.write_bytes(model.getvalue())
  return path


def randomize(model, seed: int):
  """Random weights, norms too; embeddings of the size that training leaves."""
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for name, p in model.named_parameters():
      scale = 0.3 if 'embed_tokens.weight' in name else 0.2
      p.copy_(scale * torch.randn(p.shape, generator=generator))
  return model.eval()


def gemma3():
  config = transformers.Gemma3TextConfig(
      **SIZES, use_bidirectional_attention=True, rope_parameters=SCALED
  )
  model = randomize(transformers.Gemma3TextModel(config), 1)
  return model, model


def t5gemma():
  config = transformers.T5GemmaConfig(
      encoder=SIZES, decoder=SIZES, vocab_size=ROWS
  )
  model = randomize(transformers.T5GemmaForConditionalGeneration(config), 2)
  return model, model.model.encoder


def t5gemma_encoder():
  config = transformers.T5GemmaConfig(
      encoder=SIZES, decoder=SIZES, vocab_size=ROWS, is_encoder_decoder=False
  )
  model = randomize(transformers.T5GemmaEncoderModel(config), 3)
  return model, model


def t5gemma2_whole():
  config = transformers.T5Gemma2Config(
      encoder={
          'text_config': SIZES | {'rope_parameters': SCALED},
          'vision_config': VISION, 'mm_tokens_per_image': 4,
      },
      decoder=SIZES,
  )
  model = t5gemma2.T5Gemma2ForConditionalGeneration(config)
  randomize(model, 4)
  return model, model.model.encoder


def t5gemma2_encoder():
  model, encoder = t5gemma2_whole()
  return encoder, encoder


def embedding_gemma2():
  config = transformers.EmbeddingGemma2TextConfig(
      **{
          n: x for n, x in SIZES.items()
          if n not in ('layer_types', 'query_pre_attn_scalar')
      },
      sliding_window_pattern=2, global_head_dim=16,
      num_global_key_value_heads=3, hidden_size_per_layer_input=6,
      embedding_dim=20,
  )
  model = randomize(transformers.EmbeddingGemma2TextModel(config), 5)
  for i, layer in enumerate(model.layers):
    layer.layer_scalar.fill_(0.5 + 0.25 * i)
  return model, model


def states(encoder, ids: list[list[int]]):
  """The encoder's states of each text, [L, E] each."""
  length = max(map(len, ids))
  rows = torch.tensor([row + [0] * (length - len(row)) for row in ids])
  mask = torch.tensor(
      [[1] * len(row) + [0] * (length - len(row)) for row in ids]
  )
  with torch.no_grad():
    found = encoder(input_ids=rows, attention_mask=mask).last_hidden_state
  return [x[: len(row)].numpy() for x, row in zip(found, ids)]


def add_tokenizer(
    folder: pathlib.Path, vocabulary: pathlib.Path, bos=True, eos=True
) -> None:
  """Puts Gemma's two files of a tokenizer into a folder."""
  shutil.copyfile(vocabulary, folder / 'tokenizer.model')
  (folder / 'tokenizer_config.json').write_text(json.dumps({
      'tokenizer_class': 'GemmaTokenizer', 'add_bos_token': bos,
      'add_eos_token': eos, 'model_max_length': 40,
  }))

"""Models of the hub, from command to command."""

import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax import Retriever
from dualenc_jax.cli import main as cli

fake_hub = pytest.importorskip('fake_hub')
QUERIES = ['find array byte', 'find xml zone']


@pytest.mark.slow
def test_a_model_comes_back_from_the_hub(tmp_path, monkeypatch, capsys):
  sentence_transformers = pytest.importorskip('sentence_transformers')
  with fake_hub.running(monkeypatch, tmp_path / 'cache') as hub:
    source = tiny_evaluation.link_model(tmp_path)
    out = tmp_path / 'st'
    cli.main(
        ['convert', str(source), '--to=sentence_transformers',
         f'--output_dir={out}']
    )
    hub.files['models/org/name'] = {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob('*') if path.is_file()
    }
    # Theirs reads it where the command has left it, ours from the hub.
    theirs = sentence_transformers.SentenceTransformer(str(out), device='cpu')
    ours = Retriever.from_dir('hf://org/name').encode_queries(QUERIES)
    np.testing.assert_allclose(ours, theirs.encode_query(QUERIES), atol=1e-5)

    back = tmp_path / 'back'
    cli.main(
        ['convert', 'hf://org/name', '--to=model_dir', f'--output_dir={back}']
    )
    again = Retriever.from_dir(back).encode_queries(QUERIES)
    np.testing.assert_allclose(again, ours, atol=1e-5)
    capsys.readouterr()
    cli.main([
        'check', *tiny_run.flags(tmp_path), '--no_compile',
        '--gin.INITIAL_CHECKPOINT_PATH=hf://org/name',
    ])
    assert 'Starting from' in capsys.readouterr().out


def test_a_model_dir_on_the_hub_is_not_run(capsys):
  argv = ['evaluate', '--model_dir=hf://org/name', '--tasks=beir/scifact']
  assert cli.main(argv) == 2
  told = capsys.readouterr().err
  assert 'convert hf://org/name --to=model_dir --output_dir=DIR' in told

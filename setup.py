"""Packaging: the library, and the gin files and tasks that lie beside it."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r"__version__ = '(.+)'", (ROOT / 'dualenc_jax/__init__.py').read_text()
)[1]

DATA = [
    'pyarrow>=24',
    'seqio>=0.0.20',
]
# The libraries that a conversion is compared with.
CONVERT = ['sentence-transformers>=6.0', 'torch>=2.11', 'transformers>=5.23']
HUB = ['huggingface_hub>=1.0']
MTEB = ['mteb>=2.26']
# Not on PyPI: its head, which brings its own requirements.
T5X = ['t5x @ git+https://github.com/google-research/t5x', 'tensorboard']
TPU = ['jax[tpu]>=0.10.2']
FAISS = ['faiss-cpu>=1.15']
PLOTS = ['matplotlib>=3.11', 'scikit-learn>=1.8', 'threadpoolctl>=3.6']
# References that the tests compare with, beside pytest, ruff and mypy. torch is
# pinned so that the reference does not move.
TEST = [
    'build>=1.6',
    'mypy>=2.4',
    'pytest>=9.2',
    'pytest-xdist>=3.8',
    'ruff>=0.17',
    'setuptools>=84',
    'torch==2.13.0',
]

# Inside the wheel the folders gin/ and tasks/ become parts of the package, so
# that nothing named `gin` or `tasks` lands at the top of site-packages.
GIN = sorted(
    '.'.join(['dualenc_jax', 'gin', *p.relative_to(ROOT / 'gin').parts])
    for p in [ROOT / 'gin', *(ROOT / 'gin').rglob('*')]
    if p.is_dir()
)

setuptools.setup(
    name='dualenc-jax',
    version=VERSION,
    description='Train, evaluate and search dual-encoder retrievers in JAX.',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.11',
    packages=[
        *setuptools.find_packages(include=['dualenc_jax', 'dualenc_jax.*']),
        'dualenc_jax.tasks',
        *GIN,
    ],
    package_dir={'dualenc_jax.gin': 'gin', 'dualenc_jax.tasks': 'tasks'},
    package_data={
        '': ['*.gin'],
        'dualenc_jax.data.text': ['vocabularies/*.model'],
        'dualenc_jax.data.readers': ['*.tsv'],
        'dualenc_jax.evaluation.report': ['*.css', '*.html'],
    },
    install_requires=[
        'bm25s>=0.3.16',
        'PyStemmer>=3.1',
        'etils[epath]>=1.15',
        'filelock>=4.2',
        'flatbuffers>=25.12',
        'flax>=0.12.8',
        'gin-config>=0.5.0',
        'jax>=0.10.2',
        'jinja2>=3.1',
        'markdown-it-py>=4.0',
        'ml-dtypes>=0.6',
        'msgpack>=1.2',
        'numpy>=2.4',
        'optax>=0.2.8',
        'orbax-checkpoint>=0.12.8',
        'protobuf>=7.35',
        'pytrec_eval-terrier>=0.5.11',
        'safetensors>=0.8',
        'scipy>=1.17',
        'sentencepiece>=0.2.3',
        'tensorboardX>=2.6.5',
        'tensorstore>=0.1.86',
        'tqdm>=4.70',
    ],
    extras_require={
        'data': DATA,
        'plots': PLOTS,
        'faiss': FAISS,
        'convert': CONVERT,
        'hub': HUB,
        'mteb': MTEB,
        't5x': DATA + T5X,
        'test': DATA + PLOTS + FAISS + CONVERT + HUB + MTEB + TPU + TEST,
        'gpu': ['jax[cuda12]>=0.10.2'],
        'tpu': TPU,
        # The TPU's compiler, which needs none.
        'tpu-check': TPU,
    },
    entry_points={
        'console_scripts': ['dualenc = dualenc_jax.cli.main:main']
    },
)

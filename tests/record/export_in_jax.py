"""Runs the recorded exported programs in JAX, and writes down what comes out.

With PYTHONPATH=. these write tests/data/export/*.xfunc and results.json:

python tests/export/test_export.py
python tests/dynamic_shapes/test_exported.py
JAX_PLATFORMS=cpu python tests/record/export_in_jax.py
"""

import json
from pathlib import Path

from tests.support import in_jax

DATA = Path(__file__).parents[1] / "data" / "export"


def main():
    """Run each file."""
    results = {}
    for file in sorted(DATA.glob("*.xfunc")):
        with file.open("rb") as opened:
            results[file.stem] = in_jax.run_file(opened)
    (DATA / "results.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()

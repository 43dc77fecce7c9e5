"""Dynamic shapes: exactness, memory over all sizes, plans under a limit, speed next to the peers.

The parts run one by one: ``python -m benchmarks dynamic --part peaks training``.
"""

from .table import add_options as add_options
from .table import main as main

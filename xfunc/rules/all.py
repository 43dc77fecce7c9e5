"""Loads all rules."""

from xfunc.rules import comparisons as comparisons
from xfunc.rules import elementwise as elementwise
from xfunc.rules import factories as factories
from xfunc.rules import indexing as indexing
from xfunc.rules import matrices as matrices
from xfunc.rules import reductions as reductions
from xfunc.rules import sorting as sorting
from xfunc.rules import special as special
from xfunc.rules import views as views
from xfunc.rules import windows as windows

"""Operations: torch's own examples of each of its functions, under the transforms, against eager.

torch tests itself with a database of its operations, each with a generator of sample arguments
(``torch.testing._internal.common_methods_invocations.op_db``). Every entry's samples run in every
dtype under every transform (`transforms.TRANSFORMS`), compared with eager torch on the CPU.

A sample is right, refused (an error of xfunc that names the operation), wrong (other values, and no
error), or fails with another error. The samples run in a process of their own, which is started
again behind an operation that kills it.
"""

from .cases import DTYPES as DTYPES
from .cases import arrays as arrays
from .cases import entries as entries
from .cases import samples_of as samples_of
from .compare import compare as compare
from .page import add_options as add_options
from .page import main as main
from .run import Finding as Finding
from .run import Unit as Unit
from .run import examine as examine
from .run import measure as measure
from .run import units as units
from .transforms import TRANSFORMS as TRANSFORMS

"""Programs as files, which run without the Python code they were made from."""

from xfunc.export.files import deserialize as deserialize
from xfunc.export.files import load as load
from xfunc.export.files import save as save
from xfunc.export.files import serialize as serialize
from xfunc.export.loaded import Exported as Exported

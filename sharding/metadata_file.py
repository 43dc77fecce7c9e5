"""`.metadata`, the file of a checkpoint that torch reads with pickle, read without running code."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from xfunc.core.avals import ShapeDtypeStruct
from xfunc.sharding.manifest import damaged

METADATA = ".metadata"
_CLASSES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    # torch writes the path of the folder.
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}


class _Unpickler(pickle.Unpickler):
    """Instantiates the classes that torch writes into this file, and no others."""

    def find_class(self, module: str, name: str) -> object:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_metadata(folder: Path) -> tuple[Metadata, dict[str, ShapeDtypeStruct | None]]:
    """The contents of a folder's files, and the arrays among them by name; None: a Python object.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedCheckpointError: it holds something else.
    """
    with open(folder / METADATA, "rb") as file:
        try:
            found = _Unpickler(file).load()
            return found, {n: _shape(stored) for n, stored in found.state_dict_metadata.items()}
        except OSError:
            raise
        except Exception as error:  # Bytes that are anything raise anything.
            raise damaged(folder, METADATA, f"cannot be read ({error})") from error


def _shape(stored: object) -> ShapeDtypeStruct | None:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    return ShapeDtypeStruct(tuple(stored.size), stored.properties.dtype)

"""Texts of any number to a folder of vectors, so that a kill at any moment loses nothing.

The folder's files are described in docs/encode-to-disk.md.
"""

from gemel.encode_folder.folder import EncodedFolder, read_folder
from gemel.encode_folder.job import FolderProgress, FolderResult, encode_to_folder

__all__ = ["EncodedFolder", "FolderProgress", "FolderResult", "encode_to_folder", "read_folder"]

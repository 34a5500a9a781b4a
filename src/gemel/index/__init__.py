"""An index of texts that knows its model: add, search, delete; a folder here, or a table on a server."""

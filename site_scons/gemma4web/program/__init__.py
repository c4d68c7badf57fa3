"""The program: a static graph of one method, its in-memory form, its file format and its contracts."""

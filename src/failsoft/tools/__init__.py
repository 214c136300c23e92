"""Tools that a plan's tasks call: Python functions, HTTP, SQL."""

"""What runs inside the sandbox, around the model's program. Imports the standard library only.

These modules are imported by a bare interpreter that sees no other package, so they import one
another by their short names there, and nothing secret may stand in them.
"""

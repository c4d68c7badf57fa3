"""The reference in numpy: every op of the program schema, the whole model, and an interpreter for exported programs."""

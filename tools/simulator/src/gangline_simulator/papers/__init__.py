"""Published policies, as their papers and their authors' simulators have them.

The live scheduler has none of them.
"""

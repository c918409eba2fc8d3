"""The node agent: starts the ranks of a gang on one node, watches them and speaks for them.

`core` decides (pure), `app` drives it; nothing here imports torch except `store_server`, which
is a process of its own. See docs/concepts/node-agent.md.
"""

"""The node agent: starts the ranks of a gang on one node, watches them and speaks for them.

`core` decides (pure), `app` drives it; the agent's process imports no torch: `store_server`,
`warm_up` and `node_check` run in others. See docs/concepts/node-agent.md.
"""

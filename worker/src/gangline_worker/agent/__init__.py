"""The node agent: starts the ranks of a gang on one node, watches them and reports on them.

One thread owns the decisions: `app` passes each input to `decide`, and `executor` carries out
what follows. Other threads put their results into the `inbox`. Each line imports those below it:

    __main__, app          the process, its threads and its loop
    renewal, handover      the next program in the same process
    executor               carries out what was decided
    inbox, host_resources  inputs of all threads; what the agent takes of its machine
    config                 settings
    workspace              what a gang has here before its ranks start
    peers                  copies of checkpoints from agent to agent
    checkpoints   runtime         health         rendezvous
      upload,       start, watch    GPUs, node     TCPStores and
      fetch         and end ranks   check          their proxy
    warm                   ranks from interpreters that have torch imported
    isolation     spool    sandboxes and users; events that wait for the bus
    decide        host     the pure decisions; facts of the machine

The agent's process imports no torch: `rendezvous.store_server`, `warm.warm_up` and
`health.node_check` run in processes of their own. See docs/concepts/node-agent.md.
"""

"""Events of the agent that wait on disk until the bus has them."""

"""Users and rights on Kafka: what each part needs, and how a cluster gets it."""

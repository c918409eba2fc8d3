"""MLflow's own server, with histories of metrics on Kafka and in ClickHouse."""

-- The records of the bus. Each INSERT is one block in one partition of one table, so it is there
-- whole or not at all, and max(offset) is the read position: rows equal records after any crash.
-- Codecs of points are chosen by bench_storage.py: values repeat over long distances, so their blocks
-- are large; steps and offsets grow evenly.
-- `ingested` is one value per INSERT: partitioning by it keeps every INSERT in one part.

CREATE DATABASE IF NOT EXISTS gangline;

CREATE TABLE IF NOT EXISTS gangline.steps
(
    team LowCardinality(String),
    run_id LowCardinality(String),
    attempt UInt32,
    rank UInt32,
    step UInt64 CODEC(DoubleDelta, ZSTD),
    time DateTime64(3, 'UTC') CODEC(Delta, T64, ZSTD),
    name LowCardinality(String),
    value Float64 CODEC(ZSTD(3)) SETTINGS (min_compress_block_size = 1048576),
    partition UInt32,
    offset UInt64 CODEC(DoubleDelta, ZSTD),
    ingested DateTime('UTC'),
    PROJECTION positions (SELECT partition, max(offset) GROUP BY partition)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(ingested)
ORDER BY (run_id, name, step, attempt, rank)
COMMENT 'One row per reported value: metric `name` of one rank at one step.';

CREATE TABLE IF NOT EXISTS gangline.events
(
    topic LowCardinality(String),
    partition UInt32,
    offset UInt64,
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
    type LowCardinality(String),
    id String,
    source LowCardinality(String),
    subject String,
    team LowCardinality(String),
    trace String,
    data String CODEC(ZSTD(3)),
    ingested DateTime('UTC'),
    PROJECTION positions (SELECT topic, partition, max(offset) GROUP BY topic, partition)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(ingested)
ORDER BY (subject, time, topic, offset)
COMMENT 'Every event except steps, heartbeats and logs; `data` is its JSON.';

CREATE TABLE IF NOT EXISTS gangline.logs
(
    team LowCardinality(String),
    job_id LowCardinality(String),
    attempt UInt32,
    rank UInt32,
    node_id LowCardinality(String),
    line UInt64 CODEC(Delta, ZSTD),
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
    stream LowCardinality(String),
    text String CODEC(ZSTD(3)),
    partition UInt32,
    offset UInt64 CODEC(Delta, ZSTD),
    ingested DateTime('UTC'),
    INDEX ranks rank TYPE bloom_filter(0.01) GRANULARITY 1,
    PROJECTION positions (SELECT partition, max(offset) GROUP BY partition)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(ingested)
ORDER BY (job_id, attempt, time, rank, line)
COMMENT 'One row per line that a rank wrote, in the order in which pages are read.';

CREATE TABLE IF NOT EXISTS gangline.heartbeats
(
    node_id LowCardinality(String),
    incarnation LowCardinality(String),
    sequence UInt64,
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD),
    cpu_percent Nullable(Float64),
    memory_used_gb Nullable(Float64),
    jobs Array(LowCardinality(String)),
    gpu_index Array(UInt32),
    gpu_utilization Array(Nullable(Float64)),
    gpu_memory_used_gb Array(Nullable(Float64)),
    gpu_temperature_c Array(Nullable(Float64)),
    partition UInt32,
    offset UInt64 CODEC(Delta, ZSTD),
    ingested DateTime('UTC'),
    PROJECTION positions (SELECT partition, max(offset) GROUP BY partition)
)
ENGINE = MergeTree
PARTITION BY toYYYYMMDD(ingested)
ORDER BY (node_id, time)
TTL ingested + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'One row per heartbeat of a node.';

CREATE TABLE IF NOT EXISTS gangline.metric_points
(
    team LowCardinality(String),
    run_id LowCardinality(String),
    name LowCardinality(String),
    step Int64 CODEC(DoubleDelta, ZSTD),
    time_ms Int64 CODEC(Delta, T64, ZSTD),
    value Float64 CODEC(ZSTD(3)) SETTINGS (min_compress_block_size = 1048576),
    is_nan Bool,
    partition UInt32,
    offset UInt64 CODEC(DoubleDelta, ZSTD),
    ingested DateTime('UTC'),
    PROJECTION positions (SELECT partition, max(offset) GROUP BY partition)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(ingested)
ORDER BY (run_id, name, step, time_ms, value, is_nan)
COMMENT 'One row per point of a metric that an MLflow client logged; a repeated point is repeated.';

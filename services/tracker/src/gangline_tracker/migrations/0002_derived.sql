-- Derived from the logs. A row may be written twice: the same key and version is the same row.

CREATE TABLE IF NOT EXISTS gangline.runs
(
    job_id String,
    team LowCardinality(String),
    project LowCardinality(String),
    name String,
    user String,
    state LowCardinality(String),
    reason String,
    attempt UInt32,
    restarts UInt32,
    gpus UInt32,
    priority UInt8,
    submitted_at DateTime64(3, 'UTC'),
    started_at Nullable(DateTime64(3, 'UTC')),
    ended_at Nullable(DateTime64(3, 'UTC')),
    gpu_seconds Float64,
    strategy LowCardinality(String),
    code_ref String,
    data_snapshot String,
    hyperparameters Map(String, String),
    spec String CODEC(ZSTD(3)),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY job_id
COMMENT 'One row per job (read with FINAL); version is the offset of its last decision plus 1.';

CREATE TABLE IF NOT EXISTS gangline.checkpoints
(
    job_id String,
    attempt UInt32,
    step UInt64,
    status LowCardinality(String),
    time DateTime64(3, 'UTC'),
    world_size UInt32,
    size_bytes UInt64,
    objects UInt32,
    write_s Float64,
    blocked_s Float64,
    verify_s Float64,
    commit_key String,
    reason String,
    metrics Map(String, Float64),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (job_id, attempt, step, status)
COMMENT 'One row per checkpoint and status it had; checkpoint_list has the newest.';

CREATE TABLE IF NOT EXISTS gangline.usage
(
    team LowCardinality(String),
    job_id String,
    attempt UInt32,
    gpus UInt32,
    allocated_at DateTime64(3, 'UTC'),
    released_at DateTime64(3, 'UTC'),
    gpu_seconds Float64,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (team, job_id, attempt)
COMMENT 'GPU time charged per attempt (read with FINAL).';

CREATE TABLE IF NOT EXISTS gangline.incidents
(
    team LowCardinality(String),
    job_id String,
    attempt UInt32,
    outcome LowCardinality(String),
    failure_class LowCardinality(String),
    cause LowCardinality(String),
    action LowCardinality(String),
    message String,
    first_rank Nullable(UInt32),
    node_id String,
    avoid_nodes Array(String),
    review Bool,
    failures UInt32,
    world_size UInt32,
    last_step Nullable(UInt64),
    committed_step Nullable(UInt64),
    resume_step Nullable(UInt64),
    failed_at DateTime64(3, 'UTC'),
    next_attempt Nullable(UInt32),
    allocated_at Nullable(DateTime64(3, 'UTC')),
    running_at Nullable(DateTime64(3, 'UTC')),
    first_step_at Nullable(DateTime64(3, 'UTC')),
    closed_at Nullable(DateTime64(3, 'UTC')),
    recover_s Nullable(Float64),
    work_lost_s Float64,
    down_s Float64,
    lost_gpu_s Float64,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (job_id, attempt)
COMMENT 'One row per failure (use incident_list): what happened, what it cost, when it was over.';

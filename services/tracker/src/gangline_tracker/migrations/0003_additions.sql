-- Columns, roll-ups and tables that came later. Each statement may run again.

ALTER TABLE gangline.heartbeats
    ADD COLUMN IF NOT EXISTS disk_read_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_write_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_free_gb Nullable(Float64),
    ADD COLUMN IF NOT EXISTS disk_used_percent Nullable(Float64),
    ADD COLUMN IF NOT EXISTS network_receive_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS network_send_mb_s Nullable(Float64),
    ADD COLUMN IF NOT EXISTS gpu_power_w Array(Nullable(Float64)),
    ADD COLUMN IF NOT EXISTS gpu_sm_percent Array(Nullable(Float64));

-- The id of the job's MLflow run, as gangline_schemas.mlflow_workspace.mlflow_run_id derives it.
ALTER TABLE gangline.runs ADD COLUMN IF NOT EXISTS mlflow_run_id String DEFAULT concat(
    substring(lower(hex(SHA1(concat(
        unhex('6f1c2b4e6c1a5d0e9a549d2f4c1a7b3e'), 'mlflow-run', char(31), job_id
    )))) AS digest, 1, 12),
    '5', substring(digest, 14, 3),
    substring('89ab', bitAnd(position('0123456789abcdef', substring(digest, 17, 1)) - 1, 3) + 1, 1),
    substring(digest, 18, 15)
);

ALTER TABLE gangline.runs
    ADD COLUMN IF NOT EXISTS gpu_model LowCardinality(String),
    ADD COLUMN IF NOT EXISTS gpu_model_seconds Map(String, Float64);

-- Roll-ups for curves and latest values: part of each part, so they always agree with its rows.
-- The gateway's curve_sql.py and resources.py ask with the same expressions.
ALTER TABLE gangline.steps
    ADD PROJECTION IF NOT EXISTS by_run (
        SELECT run_id, name, attempt, rank, team,
            min(step), max(step), argMax(value, step), argMax(time, step), min(value), max(value)
        GROUP BY run_id, name, attempt, rank, team
    ),
    ADD PROJECTION IF NOT EXISTS by_100_steps (
        SELECT run_id, name, intDiv(step, 100), attempt, rank, team,
            min(step), max(step), argMax(value, step), argMax(time, step), min(value), max(value)
        GROUP BY run_id, name, intDiv(step, 100), attempt, rank, team
    ),
    ADD PROJECTION IF NOT EXISTS by_1000_steps (
        SELECT run_id, name, intDiv(step, 1000), attempt, rank, team,
            min(step), max(step), argMax(value, step), argMax(time, step), min(value), max(value)
        GROUP BY run_id, name, intDiv(step, 1000), attempt, rank, team
    );

ALTER TABLE gangline.metric_points
    ADD PROJECTION IF NOT EXISTS by_run (
        SELECT run_id, name, is_nan, team, min(step), max(step),
            argMax(value, (step, time_ms, value)), argMax(time_ms, (step, time_ms, value)),
            min(value), max(value), sum(value), count()
        GROUP BY run_id, name, is_nan, team
    ),
    ADD PROJECTION IF NOT EXISTS by_1000_steps (
        SELECT run_id, name, intDiv(step, 1000), is_nan, team, min(step), max(step),
            argMax(value, (step, time_ms, value)), argMax(time_ms, (step, time_ms, value)),
            min(value), max(value), sum(value), count()
        GROUP BY run_id, name, intDiv(step, 1000), is_nan, team
    );

-- Which granules have lines that look like errors: ERROR_LINE of gangline_schemas.api.logs.
ALTER TABLE gangline.logs ADD INDEX IF NOT EXISTS errors match(text,
    '(?i)(error|exception|traceback|fatal|critical|panic|segmentation fault|out of memory|killed)'
) TYPE set(2) GRANULARITY 1;

-- Of attempts of jobs without GPUs; NULL for others.
ALTER TABLE gangline.usage
    ADD COLUMN IF NOT EXISTS cpus Nullable(Float64),
    ADD COLUMN IF NOT EXISTS cpu_seconds Nullable(Float64);

CREATE TABLE IF NOT EXISTS gangline.run_tags
(
    team LowCardinality(String),
    job_id String,
    name LowCardinality(String),
    value String,
    removed Bool,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (job_id, name, team)
COMMENT 'One row per tag that a user set on a run (read with FINAL); version is its time in us.';

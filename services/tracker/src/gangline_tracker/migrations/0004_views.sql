-- What dashboards read.

-- At each step the newest attempt counts, and of its ranks the lowest that reported.
CREATE OR REPLACE VIEW gangline.run_curves AS
SELECT
    s.team AS team,
    s.run_id AS run_id,
    s.name AS name,
    s.step AS step,
    argMax(s.value, (s.attempt, -toInt64(s.rank))) AS value,
    argMax(s.time, (s.attempt, -toInt64(s.rank))) AS time,
    max(s.attempt) AS attempt
FROM gangline.steps AS s
GROUP BY s.team, s.run_id, s.name, s.step;

CREATE OR REPLACE VIEW gangline.run_list AS
SELECT * FROM gangline.runs FINAL;

CREATE OR REPLACE VIEW gangline.incident_list AS
SELECT * FROM gangline.incidents FINAL;

CREATE OR REPLACE VIEW gangline.checkpoint_list AS
SELECT
    c.job_id AS job_id,
    c.attempt AS attempt,
    c.step AS step,
    argMax(c.status, c.version) AS status,
    min(c.time) AS time,
    max(c.world_size) AS world_size,
    max(c.size_bytes) AS size_bytes,
    max(c.write_s) AS write_s,
    max(c.blocked_s) AS blocked_s,
    max(c.verify_s) AS verify_s,
    max(c.commit_key) AS commit_key,
    argMax(c.reason, c.version) AS reason
FROM gangline.checkpoints AS c
GROUP BY c.job_id, c.attempt, c.step;

CREATE OR REPLACE VIEW gangline.node_samples AS
SELECT
    node_id,
    incarnation,
    time,
    jobs,
    cpu_percent,
    memory_used_gb,
    disk_read_mb_s,
    disk_write_mb_s,
    disk_free_gb,
    disk_used_percent,
    network_receive_mb_s,
    network_send_mb_s,
    gpu,
    utilization,
    gpu_memory_gb,
    temperature_c,
    power_w,
    sm_percent
FROM gangline.heartbeats
LEFT ARRAY JOIN
    gpu_index AS gpu,
    gpu_utilization AS utilization,
    gpu_memory_used_gb AS gpu_memory_gb,
    gpu_temperature_c AS temperature_c,
    arrayResize(gpu_power_w, length(gpu_index)) AS power_w,
    arrayResize(gpu_sm_percent, length(gpu_index)) AS sm_percent;

-- Where the version behind each alias comes from. `gpu_model_seconds` times prices is its cost.
CREATE OR REPLACE VIEW gangline.lineage AS
SELECT
    a.team AS team,
    a.model AS model,
    a.alias AS alias,
    a.version AS version,
    a.moved_at AS moved_at,
    a.moved_by AS moved_by,
    a.move AS move,
    v.job_id AS job_id,
    v.step AS checkpoint_step,
    v.attempt AS checkpoint_attempt,
    r.user AS user,
    r.attempt AS attempts,
    r.restarts AS restarts,
    i.incidents AS incidents,
    i.lost_gpu_s AS lost_gpu_s,
    r.gpu_seconds AS gpu_seconds,
    r.gpu_model_seconds AS gpu_model_seconds,
    r.code_ref AS code_ref,
    JSONExtractString(r.spec, 'code_bundle') AS code_bundle,
    JSONExtractString(r.spec, 'image') AS image,
    r.hyperparameters AS hyperparameters,
    JSONExtract(r.spec, 'seed', 'Nullable(Int64)') AS seed,
    if(v.snapshot = '', r.data_snapshot, v.snapshot) AS snapshot,
    s.place AS snapshot_place,
    s.sources AS snapshot_sources,
    s.announced_by AS snapshot_by
FROM (
    SELECT
        team,
        JSONExtractString(data, 'model') AS model,
        JSONExtractString(data, 'alias') AS alias,
        argMax(JSONExtractUInt(data, 'to_version'), offset) AS version,
        argMax(time, offset) AS moved_at,
        argMax(JSONExtractString(data, 'by'), offset) AS moved_by,
        argMax(JSONExtractString(data, 'kind'), offset) AS move
    FROM gangline.events
    WHERE type = 'alias.moved'
    GROUP BY team, model, alias
) AS a
LEFT JOIN (
    SELECT
        b.team AS team,
        b.model AS model,
        m.version AS version,
        argMin(b.job_id, b.registration) AS job_id,
        argMin(b.step, b.registration) AS step,
        argMin(b.attempt, b.registration) AS attempt,
        argMin(b.snapshot, b.registration) AS snapshot
    FROM (
        SELECT
            team,
            JSONExtractString(data, 'model') AS model,
            JSONExtractUInt(data, 'registration') AS registration,
            JSONExtractString(data, 'checkpoint', 'job_id') AS job_id,
            JSONExtractUInt(data, 'checkpoint', 'step') AS step,
            JSONExtractUInt(data, 'checkpoint', 'attempt') AS attempt,
            JSONExtractString(data, 'snapshot') AS snapshot
        FROM gangline.events
        WHERE type = 'model.version.begun'
    ) AS b
    INNER JOIN (
        SELECT
            team,
            JSONExtractUInt(data, 'registration') AS registration,
            JSONExtractUInt(data, 'version') AS version
        FROM gangline.events
        WHERE type = 'model.version.registered'
    ) AS m ON m.team = b.team AND m.registration = b.registration
    GROUP BY team, model, version
) AS v ON v.team = a.team AND v.model = a.model AND v.version = a.version
LEFT JOIN gangline.run_list AS r ON r.job_id = v.job_id
LEFT JOIN (
    SELECT job_id, count() AS incidents, sum(lost_gpu_s) AS lost_gpu_s
    FROM gangline.incident_list
    GROUP BY job_id
) AS i ON i.job_id = v.job_id
LEFT JOIN (
    SELECT
        team,
        JSONExtractString(data, 'snapshot') AS snapshot,
        argMax(JSONExtractString(data, 'place'), offset) AS place,
        argMax(JSONExtract(data, 'sources', 'Array(String)'), offset) AS sources,
        argMax(JSONExtractString(data, 'user'), offset) AS announced_by
    FROM gangline.events
    WHERE type = 'snapshot.announced'
    GROUP BY team, snapshot
) AS s ON s.team = a.team AND s.snapshot = if(v.snapshot = '', r.data_snapshot, v.snapshot);

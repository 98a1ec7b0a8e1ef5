-- What devices did, and whose doing it was: samples, and what minutes, hours and days of them come to.
--
-- A row without an assignment is a device's; one with an assignment is what that did on the device. What was not
-- told is NULL, never 0. Shares of time are thousandths.

CREATE TABLE samples (
    at timestamptz NOT NULL,
    device_id uuid NOT NULL,
    assignment_id uuid,
    job_id uuid,
    team_id uuid,
    -- Time in which any kernel ran, multiprocessors at work, tensor pipes, memory's bandwidth.
    busy smallint,
    sm smallint,
    tensor smallint,
    dram smallint,
    memory_mib bigint,
    temperature_c smallint,
    power_mw integer,
    -- Since the sample before.
    energy_mj bigint,
    processes integer
) PARTITION BY RANGE (at);
-- Each row is in one of the two.
CREATE INDEX samples_by_device ON samples (device_id, at) WHERE job_id IS NULL;
CREATE INDEX samples_by_job ON samples (job_id, at) WHERE job_id IS NOT NULL;

-- Sums, so that what minutes come to adds up to what hours do. `counted` is how many samples told each.
CREATE TABLE sample_minutes (
    at timestamptz NOT NULL,
    device_id uuid NOT NULL,
    assignment_id uuid,
    job_id uuid,
    team_id uuid,
    samples integer NOT NULL,
    busy_counted integer NOT NULL,
    busy_sum bigint NOT NULL,
    sm_counted integer NOT NULL,
    sm_sum bigint NOT NULL,
    -- The most that was seen of what tells more: multiprocessors at work, else time with a kernel.
    load_max smallint,
    tensor_counted integer NOT NULL,
    tensor_sum bigint NOT NULL,
    dram_counted integer NOT NULL,
    dram_sum bigint NOT NULL,
    memory_counted integer NOT NULL,
    memory_sum bigint NOT NULL,
    memory_max bigint,
    temperature_max smallint,
    power_counted integer NOT NULL,
    power_sum bigint NOT NULL,
    energy_mj bigint,
    processes_max integer,
    CONSTRAINT minute_once UNIQUE NULLS NOT DISTINCT (device_id, assignment_id, at)
) PARTITION BY RANGE (at);
CREATE INDEX sample_minutes_by_job ON sample_minutes (job_id, at) WHERE job_id IS NOT NULL;
CREATE TABLE sample_hours (LIKE sample_minutes,
    CONSTRAINT hour_once UNIQUE NULLS NOT DISTINCT (device_id, assignment_id, at));
CREATE INDEX sample_hours_by_job ON sample_hours (job_id, at) WHERE job_id IS NOT NULL;
CREATE INDEX sample_hours_by_time ON sample_hours (at);
CREATE TABLE sample_days (LIKE sample_minutes,
    CONSTRAINT day_once UNIQUE NULLS NOT DISTINCT (device_id, assignment_id, at));
CREATE INDEX sample_days_by_job ON sample_days (job_id, at) WHERE job_id IS NOT NULL;
CREATE INDEX sample_days_by_time ON sample_days (at);

-- Up to when samples have been reckoned up. Who writes samples holds it shared, who reckons up holds it alone, so
-- that a sample is either seen by who reckons up, or known to be late by who writes it.
CREATE TABLE samples_reckoned (
    level text PRIMARY KEY CONSTRAINT reckoned_level CHECK (level IN ('minute', 'hour', 'day')),
    until timestamptz NOT NULL
);
INSERT INTO samples_reckoned (level, until)
SELECT level, date_trunc(level, allotment.clock(), 'UTC') FROM unnest(ARRAY['minute', 'hour', 'day']) AS level;

-- Makes the partitions of the days around now, and drops those of days before the two bounds. Samples are copied
-- straight into a day's partition, for COPY does not go through row-level security; a partition is granted to
-- nobody else, so that whoever reads goes through the wall of the whole table.
CREATE FUNCTION allotment.tend_samples(samples_from timestamptz, minutes_from timestamptz) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET timezone = 'UTC'
    AS $$
    DECLARE
        today date := allotment.clock()::date;
        whole text;
        part text;
        day date;
        kept_from timestamptz;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('allotment.tend_samples'));
        FOREACH whole IN ARRAY ARRAY['samples', 'sample_minutes'] LOOP
            FOR day IN SELECT today + step FROM generate_series(-1, 2) AS step LOOP
                part := whole || '_' || to_char(day, 'YYYYMMDD');
                CONTINUE WHEN to_regclass(part) IS NOT NULL;
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, whole);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                               whole, part, day::timestamptz, (day + 1)::timestamptz);
                IF whole = 'samples' THEN
                    EXECUTE format('GRANT INSERT ON %I TO allotment_system', part);
                END IF;
            END LOOP;
            kept_from := CASE whole WHEN 'samples' THEN samples_from ELSE minutes_from END;
            FOR part, day IN
                SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
                FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                WHERE i.inhparent = whole::regclass
            LOOP
                IF (day + 1)::timestamptz <= kept_from AND day < today - 1 THEN
                    EXECUTE format('DROP TABLE %I', part);
                END IF;
            END LOOP;
        END LOOP;
    END
    $$;
REVOKE ALL ON FUNCTION allotment.tend_samples(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION allotment.tend_samples(timestamptz, timestamptz) TO allotment_system;

-- Reckons a span of time up, whatever was reckoned of it before: of all devices, or of some.
CREATE FUNCTION allotment.reckon_minutes(since timestamptz, until timestamptz, devices uuid[]) RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
        INSERT INTO sample_minutes AS m
        SELECT date_trunc('minute', s.at, 'UTC'), s.device_id, s.assignment_id, s.job_id, s.team_id, count(*),
            count(s.busy), COALESCE(sum(s.busy), 0), count(s.sm), COALESCE(sum(s.sm), 0), max(COALESCE(s.sm, s.busy)),
            count(s.tensor), COALESCE(sum(s.tensor), 0), count(s.dram), COALESCE(sum(s.dram), 0),
            count(s.memory_mib), COALESCE(sum(s.memory_mib), 0), max(s.memory_mib), max(s.temperature_c),
            count(s.power_mw), COALESCE(sum(s.power_mw), 0), sum(s.energy_mj), max(s.processes)
        FROM samples AS s
        WHERE s.at >= since AND s.at < reckon_minutes.until AND (devices IS NULL OR s.device_id = ANY (devices))
        GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (device_id, assignment_id, at) DO UPDATE SET
            samples = EXCLUDED.samples, busy_counted = EXCLUDED.busy_counted, busy_sum = EXCLUDED.busy_sum,
            sm_counted = EXCLUDED.sm_counted, sm_sum = EXCLUDED.sm_sum, load_max = EXCLUDED.load_max,
            tensor_counted = EXCLUDED.tensor_counted, tensor_sum = EXCLUDED.tensor_sum,
            dram_counted = EXCLUDED.dram_counted, dram_sum = EXCLUDED.dram_sum,
            memory_counted = EXCLUDED.memory_counted, memory_sum = EXCLUDED.memory_sum,
            memory_max = EXCLUDED.memory_max, temperature_max = EXCLUDED.temperature_max,
            power_counted = EXCLUDED.power_counted, power_sum = EXCLUDED.power_sum,
            energy_mj = EXCLUDED.energy_mj, processes_max = EXCLUDED.processes_max
    $$;

-- The same of hours from minutes, and of days from hours.
CREATE FUNCTION allotment.reckon_hours(level text, since timestamptz, until timestamptz, devices uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        finer text := CASE level WHEN 'hour' THEN 'sample_minutes' ELSE 'sample_hours' END;
        coarser text := CASE level WHEN 'hour' THEN 'sample_hours' ELSE 'sample_days' END;
    BEGIN
        EXECUTE format($sql$
            INSERT INTO %I
            SELECT date_trunc(%L, f.at, 'UTC'), f.device_id, f.assignment_id, f.job_id, f.team_id, sum(f.samples),
                sum(f.busy_counted), sum(f.busy_sum), sum(f.sm_counted), sum(f.sm_sum), max(f.load_max),
                sum(f.tensor_counted), sum(f.tensor_sum), sum(f.dram_counted), sum(f.dram_sum),
                sum(f.memory_counted), sum(f.memory_sum), max(f.memory_max), max(f.temperature_max),
                sum(f.power_counted), sum(f.power_sum), sum(f.energy_mj), max(f.processes_max)
            FROM %I AS f
            WHERE f.at >= $1 AND f.at < $2 AND ($3 IS NULL OR f.device_id = ANY ($3))
            GROUP BY 1, 2, 3, 4, 5
            ON CONFLICT (device_id, assignment_id, at) DO UPDATE SET
                samples = EXCLUDED.samples, busy_counted = EXCLUDED.busy_counted, busy_sum = EXCLUDED.busy_sum,
                sm_counted = EXCLUDED.sm_counted, sm_sum = EXCLUDED.sm_sum, load_max = EXCLUDED.load_max,
                tensor_counted = EXCLUDED.tensor_counted, tensor_sum = EXCLUDED.tensor_sum,
                dram_counted = EXCLUDED.dram_counted, dram_sum = EXCLUDED.dram_sum,
                memory_counted = EXCLUDED.memory_counted, memory_sum = EXCLUDED.memory_sum,
                memory_max = EXCLUDED.memory_max, temperature_max = EXCLUDED.temperature_max,
                power_counted = EXCLUDED.power_counted, power_sum = EXCLUDED.power_sum,
                energy_mj = EXCLUDED.energy_mj, processes_max = EXCLUDED.processes_max
            $sql$, coarser, level, finer) USING since, until, devices;
    END
    $$;

-- Minutes as far as they go: those that are reckoned up, and what the samples after them come to so far. Who
-- reads it goes through the walls of both.
CREATE VIEW sample_minutes_now WITH (security_invoker = true) AS
    SELECT * FROM sample_minutes
    UNION ALL
    SELECT date_trunc('minute', s.at, 'UTC'), s.device_id, s.assignment_id, s.job_id, s.team_id, count(*)::integer,
        count(s.busy)::integer, COALESCE(sum(s.busy), 0), count(s.sm)::integer, COALESCE(sum(s.sm), 0),
        max(COALESCE(s.sm, s.busy)), count(s.tensor)::integer, COALESCE(sum(s.tensor), 0),
        count(s.dram)::integer, COALESCE(sum(s.dram), 0), count(s.memory_mib)::integer,
        COALESCE(sum(s.memory_mib), 0)::bigint, max(s.memory_mib), max(s.temperature_c),
        count(s.power_mw)::integer, COALESCE(sum(s.power_mw), 0), sum(s.energy_mj)::bigint, max(s.processes)
    FROM samples AS s
    WHERE s.at >= (SELECT r.until FROM samples_reckoned AS r WHERE r.level = 'minute')
    GROUP BY 1, 2, 3, 4, 5;

GRANT SELECT ON samples, sample_minutes, sample_minutes_now, sample_hours, sample_days TO allotment_app, allotment_system;
GRANT INSERT ON samples TO allotment_system;
GRANT INSERT, UPDATE ON sample_minutes TO allotment_system;
GRANT INSERT, UPDATE, DELETE ON sample_hours, sample_days TO allotment_system;
GRANT SELECT ON samples_reckoned TO allotment_app;
GRANT SELECT, UPDATE ON samples_reckoned TO allotment_system;
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['samples', 'sample_minutes', 'sample_hours', 'sample_days', 'samples_reckoned'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
    END LOOP;
    -- What a device does everybody may know, what a job does there its team.
    FOREACH t IN ARRAY ARRAY['samples', 'sample_minutes', 'sample_hours', 'sample_days'] LOOP
        EXECUTE format(
            'CREATE POLICY own_team ON %I FOR SELECT TO allotment_app USING (allotment.sees_all() '
            'OR (team_id IS NULL AND allotment.asker() IS NOT NULL) '
            'OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
    CREATE POLICY everybody_reads ON samples_reckoned FOR SELECT TO allotment_app USING (allotment.asker() IS NOT NULL);
END $$;

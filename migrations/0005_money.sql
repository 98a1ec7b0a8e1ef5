-- Prices, usage segments, the ledger, and what capacity there was.

CREATE TABLE prices (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    mode text NOT NULL CONSTRAINT price_mode CHECK (mode IN ('exclusive', 'mig', 'mps', 'time_slice', 'vgpu')),
    per_gpu_hour numeric(20, 6) NOT NULL CONSTRAINT price_not_negative CHECK (per_gpu_hour >= 0),
    currency text NOT NULL CONSTRAINT price_currency CHECK (currency ~ '^[A-Z]{3}$'),
    effective_from timestamptz NOT NULL,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT price_taken UNIQUE (pool_id, mode, effective_from)
);
CREATE TRIGGER prices_append_only BEFORE UPDATE OR DELETE ON prices
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

-- A half-open time range in which an assignment held a share of a device. `reserved` from
-- granted to handed over, `charged` until released or fenced, `unreachable` after the last
-- heartbeat of a lost node, at the operator's charge.
CREATE TABLE usage_segments (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    user_id uuid NOT NULL REFERENCES users (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    assignment_id uuid NOT NULL REFERENCES assignments (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    node_id uuid NOT NULL REFERENCES nodes (id),
    device_id uuid NOT NULL REFERENCES devices (id),
    -- The first place that the share takes on its device (assignment_devices.slots).
    slot integer NOT NULL,
    mode text NOT NULL CONSTRAINT segment_mode CHECK (mode IN ('exclusive', 'mig', 'mps', 'time_slice', 'vgpu')),
    kind text NOT NULL CONSTRAINT segment_kind CHECK (kind IN ('reserved', 'charged', 'unreachable')),
    gpus_milli integer NOT NULL CONSTRAINT segment_amount CHECK (gpus_milli BETWEEN 1 AND 1000),
    started_at timestamptz NOT NULL,
    ended_at timestamptz CONSTRAINT segment_order CHECK (ended_at >= started_at),
    -- Ledger entries exist up to here.
    rated_until timestamptz,
    CONSTRAINT one_holder_at_a_time EXCLUDE USING gist (
        device_id WITH =, slot WITH =, tstzrange(started_at, ended_at) WITH &&)
);
CREATE INDEX usage_segments_by_team ON usage_segments (team_id, started_at);
CREATE INDEX usage_segments_by_pool ON usage_segments (pool_id, started_at);
CREATE INDEX usage_segments_by_job ON usage_segments (job_id);
CREATE INDEX usage_segments_by_assignment ON usage_segments (assignment_id);
CREATE INDEX usage_segments_open ON usage_segments (id) WHERE ended_at IS NULL;

-- Money derived from a charged segment and a price, per hour of the clock at most. Never changed.
CREATE TABLE ledger_entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    user_id uuid NOT NULL REFERENCES users (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    segment_id uuid NOT NULL REFERENCES usage_segments (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    mode text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL CONSTRAINT entry_order CHECK (ended_at > started_at),
    -- Thousandths of a GPU times microseconds: exact.
    gpu_milli_micros numeric(38, 0) NOT NULL,
    -- Absent where no price covers it: unpriced, never 0.
    price_id uuid REFERENCES prices (id),
    amount numeric(38, 18),
    currency text,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT entry_priced CHECK ((price_id IS NULL) = (amount IS NULL) AND (amount IS NULL) = (currency IS NULL)),
    CONSTRAINT entry_once UNIQUE (segment_id, started_at)
);
CREATE INDEX ledger_entries_by_team ON ledger_entries (team_id, started_at);
CREATE INDEX ledger_entries_by_job ON ledger_entries (job_id);
CREATE INDEX ledger_entries_by_time ON ledger_entries (started_at);
-- The price in force at a time: the one place that says which of the book's rows that is.
CREATE FUNCTION allotment.price_at(pool uuid, mode text, at timestamptz) RETURNS TABLE (
    id uuid, per_gpu_hour numeric, currency text)
    LANGUAGE sql STABLE
    AS $$
        SELECT p.id, p.per_gpu_hour, p.currency
        FROM prices AS p
        WHERE p.pool_id = price_at.pool AND p.mode = price_at.mode AND p.effective_from <= price_at.at
        ORDER BY p.effective_from DESC
        LIMIT 1
    $$;
-- What of the charged segments no ledger entry covers yet, cut at full hours and at changes of
-- price, so that each piece has one price or none; of open segments what lies before `open_until`
-- and before their node's last heartbeat: what comes after that is the operator's if the node is
-- lost, and no figure that was shown may shrink. Rating copies it into the ledger, and reports
-- add it to the ledger, so that the two can never differ in their arithmetic.
CREATE FUNCTION allotment.unrated_pieces(open_until timestamptz) RETURNS TABLE (
    segment_id uuid, team_id uuid, user_id uuid, job_id uuid, pool_id uuid, mode text,
    started_at timestamptz, ended_at timestamptz, gpu_milli_micros numeric,
    price_id uuid, amount numeric, currency text)
    LANGUAGE sql STABLE
    AS $$
        SELECT s.id, s.team_id, s.user_id, s.job_id, s.pool_id, s.mode,
            piece.started_at, piece.ended_at, held.gpu_milli_micros,
            price.id,
            -- Thousandths and microseconds of an hour: 1000 * 3600 * 10^6. The wide cast keeps
            -- the division's digits, which would else be cut at sixteen.
            round((price.per_gpu_hour * held.gpu_milli_micros)::numeric(76, 30) / 3600000000000, 18),
            price.currency
        FROM usage_segments AS s
        JOIN nodes AS n ON n.id = s.node_id
        CROSS JOIN LATERAL (
            SELECT COALESCE(s.rated_until, s.started_at) AS began,
                COALESCE(s.ended_at, LEAST(open_until, n.last_heartbeat_at)) AS ended
        ) AS span
        CROSS JOIN LATERAL (
            SELECT cuts.at AS started_at, LEAD(cuts.at, 1, span.ended) OVER (ORDER BY cuts.at) AS ended_at
            FROM (
                SELECT span.began AS at
                UNION
                SELECT hours.at
                FROM generate_series(date_trunc('hour', span.began, 'UTC') + interval '1 hour', span.ended, interval '1 hour') AS hours (at)
                WHERE hours.at < span.ended
                UNION
                SELECT p.effective_from
                FROM prices AS p
                WHERE p.pool_id = s.pool_id AND p.mode = s.mode
                    AND p.effective_from > span.began AND p.effective_from < span.ended
            ) AS cuts
        ) AS piece
        CROSS JOIN LATERAL (
            SELECT s.gpus_milli * trunc(EXTRACT(EPOCH FROM piece.ended_at - piece.started_at) * 1000000) AS gpu_milli_micros
        ) AS held
        LEFT JOIN LATERAL allotment.price_at(s.pool_id, s.mode, piece.started_at) AS price ON true
        WHERE s.kind = 'charged' AND (s.ended_at IS NULL OR s.rated_until IS NULL OR s.rated_until < s.ended_at)
            AND span.began < span.ended
    $$;
CREATE INDEX usage_segments_unrated ON usage_segments (id)
    WHERE kind = 'charged' AND (ended_at IS NULL OR rated_until IS NULL OR rated_until < ended_at);
CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON ledger_entries
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

-- When each device was there, and whether it could be given out. Capacity is their sum.
CREATE TABLE capacity_segments (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    node_id uuid NOT NULL REFERENCES nodes (id),
    device_id uuid NOT NULL REFERENCES devices (id),
    available boolean NOT NULL,
    -- Why it was not: cordoned, unreachable, failed …
    reason text NOT NULL DEFAULT '',
    started_at timestamptz NOT NULL,
    ended_at timestamptz CONSTRAINT capacity_order CHECK (ended_at >= started_at),
    CONSTRAINT one_state_at_a_time EXCLUDE USING gist (device_id WITH =, tstzrange(started_at, ended_at) WITH &&)
);
-- Why a device cannot be given out, as the segments say it; empty where it can.
CREATE FUNCTION allotment.out_of_use(intent text, reachability text, health text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT CASE WHEN intent = 'retired' THEN 'retired'
                    WHEN reachability <> 'ready' THEN reachability
                    WHEN health = 'failed' THEN 'failed'
                    WHEN health = 'suspect' THEN 'suspect'
                    WHEN intent <> 'open' THEN intent
                    ELSE '' END
    $$;
CREATE INDEX capacity_segments_by_pool ON capacity_segments (pool_id, started_at);
CREATE UNIQUE INDEX capacity_segments_open ON capacity_segments (device_id) WHERE ended_at IS NULL;

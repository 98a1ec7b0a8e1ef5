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
CREATE INDEX capacity_segments_by_pool ON capacity_segments (pool_id, started_at);
CREATE UNIQUE INDEX capacity_segments_open ON capacity_segments (device_id) WHERE ended_at IS NULL;

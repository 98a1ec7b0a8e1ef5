-- Prices, usage segments, the ledger, and what capacity there was.

-- A version of the price book: lines that are drafted, looked at (what would they have charged?), and
-- then put in force together. A draft's lines are never changed: another draft takes its place.
CREATE TABLE price_books (
    id uuid PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT book_number_taken UNIQUE,
    state text NOT NULL DEFAULT 'draft'
        CONSTRAINT book_state CHECK (state IN ('draft', 'active', 'discarded')),
    reason text NOT NULL CONSTRAINT book_reason CHECK (length(reason) BETWEEN 1 AND 500),
    effective_from timestamptz NOT NULL,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    decided_by uuid REFERENCES users (id),
    activated_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT book_activated CHECK ((activated_at IS NOT NULL) = (state = 'active')),
    CONSTRAINT book_decided CHECK ((decided_by IS NOT NULL) = (state <> 'draft'))
);
CREATE TRIGGER check_step BEFORE UPDATE ON price_books
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('price_book', 'state');

-- What a unit costs for an hour from a time on: a GPU (or an instance of a profile), a core, a GiB.
CREATE TABLE prices (
    id uuid PRIMARY KEY,
    -- The version that it is a line of; absent where it was added by itself, and in force at once.
    book_id uuid REFERENCES price_books (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    resource text NOT NULL DEFAULT 'gpu' CONSTRAINT price_resource CHECK (resource IN ('gpu', 'cpu', 'memory')),
    mode text CONSTRAINT price_mode CHECK (mode IN ('exclusive', 'mig', 'mps', 'time_slice', 'vgpu')),
    mig_profile text CONSTRAINT price_profile CHECK (mig_profile ~ '^[0-9a-z.+]{1,32}$'),
    -- Contracted: what statements charge. List and effective stand beside it.
    per_gpu_hour numeric(20, 6) NOT NULL CONSTRAINT price_not_negative CHECK (per_gpu_hour >= 0),
    list_per_hour numeric(20, 6) NOT NULL CONSTRAINT list_price_not_negative CHECK (list_per_hour >= 0),
    effective_per_hour numeric(20, 6) NOT NULL
        CONSTRAINT effective_price_not_negative CHECK (effective_per_hour >= 0),
    currency text NOT NULL CONSTRAINT price_currency CHECK (currency ~ '^[A-Z]{3}$'),
    effective_from timestamptz NOT NULL,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT price_of_gpu CHECK ((resource = 'gpu') = (mode IS NOT NULL)),
    CONSTRAINT price_of_profile CHECK (mig_profile IS NULL OR mode = 'mig'),
    CONSTRAINT price_taken UNIQUE NULLS NOT DISTINCT (pool_id, resource, mode, mig_profile, effective_from, book_id)
);
-- By what prices of a pool are multiplied: for preemptible work, for borrowed use, in a weekly window. The
-- latest of a name counts; one of 1 ends it.
CREATE TABLE price_factors (
    id uuid PRIMARY KEY,
    book_id uuid NOT NULL REFERENCES price_books (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    kind text NOT NULL CONSTRAINT factor_kind CHECK (kind IN ('preemptible', 'borrowed', 'weekly')),
    -- Of a weekly window its name, else empty.
    name text NOT NULL DEFAULT '' CONSTRAINT factor_name CHECK (length(name) <= 63 AND (kind = 'weekly') = (name <> '')),
    factor numeric(9, 6) NOT NULL CONSTRAINT factor_bounds CHECK (factor BETWEEN 0 AND 100),
    -- Of a weekly window: days of ISO 8601 (1 is Monday), minutes of the day, and whose clocks show them. One
    -- that ends no later than it begins lasts into the next day.
    days integer[] CONSTRAINT factor_days CHECK (days <@ ARRAY[1, 2, 3, 4, 5, 6, 7] AND cardinality(days) BETWEEN 1 AND 7),
    from_minute integer CONSTRAINT factor_from CHECK (from_minute BETWEEN 0 AND 1439),
    to_minute integer CONSTRAINT factor_to CHECK (to_minute BETWEEN 0 AND 1439),
    time_zone text,
    effective_from timestamptz NOT NULL,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT factor_window CHECK (num_nonnulls(days, from_minute, to_minute, time_zone) = CASE kind WHEN 'weekly' THEN 4 ELSE 0 END),
    CONSTRAINT factor_taken UNIQUE (book_id, pool_id, kind, name, effective_from)
);
CREATE TRIGGER price_factors_append_only BEFORE UPDATE OR DELETE ON price_factors
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();
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
    -- What it is billed as: of a fraction the larger of its part of the device and of its memory.
    billed_milli integer NOT NULL CONSTRAINT segment_billed CHECK (billed_milli BETWEEN 1 AND 1000),
    mig_profile text,
    -- Cores and memory of the assignment, on the first of its devices; 0 on the others.
    cpus_milli bigint NOT NULL DEFAULT 0 CONSTRAINT segment_cpus CHECK (cpus_milli >= 0),
    memory_mib bigint NOT NULL DEFAULT 0 CONSTRAINT segment_memory CHECK (memory_mib >= 0),
    -- Whether it could have been preempted, and was beyond its team's guarantee, when it was given.
    preemptible boolean NOT NULL DEFAULT false,
    borrowed boolean NOT NULL DEFAULT false,
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

-- The organisation: in which currency it bills, on which clocks its months begin, and what it gives back for lost nodes.
CREATE TABLE organisation (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT one_organisation CHECK (only_row),
    time_zone text NOT NULL DEFAULT 'UTC',
    -- Absent until the first price.
    currency text CONSTRAINT organisation_currency CHECK (currency ~ '^[A-Z]{3}$'),
    -- Of what an attempt was charged before its node was lost, the last so many minutes are credited.
    node_loss_credit_minutes integer NOT NULL DEFAULT 60
        CONSTRAINT organisation_credit CHECK (node_loss_credit_minutes BETWEEN 0 AND 44640),
    version bigint NOT NULL DEFAULT 1
);
INSERT INTO organisation DEFAULT VALUES;

-- Billing periods: months of the organisation's clocks. Bounds are worked out once, when a period opens.
CREATE TABLE billing_periods (
    id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT period_name_taken UNIQUE CONSTRAINT period_name CHECK (name ~ '^[0-9]{4}-[0-9]{2}$'),
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL CONSTRAINT period_order CHECK (ended_at > started_at),
    time_zone text NOT NULL,
    state text NOT NULL DEFAULT 'open' CONSTRAINT period_state CHECK (state IN ('open', 'closing', 'closed', 'issued')),
    closed_at timestamptz,
    issued_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT one_period_at_a_time EXCLUDE USING gist (tstzrange(started_at, ended_at) WITH &&)
);
CREATE TRIGGER check_step BEFORE UPDATE ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('billing_period', 'state');

-- Capacity that a team pays for whether it uses it or not.
CREATE TABLE commitments (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    gpus_milli bigint NOT NULL CONSTRAINT commitment_amount CHECK (gpus_milli BETWEEN 1 AND 10000000000),
    per_gpu_hour numeric(20, 6) NOT NULL CONSTRAINT commitment_price CHECK (per_gpu_hour >= 0),
    currency text NOT NULL CONSTRAINT commitment_currency CHECK (currency ~ '^[A-Z]{3}$'),
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL CONSTRAINT commitment_order CHECK (ended_at > started_at),
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT one_commitment_at_a_time EXCLUDE USING gist (
        team_id WITH =, pool_id WITH =, tstzrange(started_at, ended_at) WITH &&)
);
CREATE TRIGGER commitments_append_only BEFORE UPDATE OR DELETE ON commitments
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

-- Money, per hour of the clock at most. Never changed: what turns out otherwise is reversed and entered anew.
CREATE TABLE ledger_entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL DEFAULT 'usage'
        CONSTRAINT entry_kind CHECK (kind IN ('usage', 'reversal', 'correction', 'credit', 'committed')),
    -- The period that bills it; of corrections another one than it lies in.
    period_id uuid NOT NULL REFERENCES billing_periods (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    -- Absent, as job and segment are, where nothing was used: capacity that was committed.
    user_id uuid REFERENCES users (id),
    job_id uuid REFERENCES jobs (id),
    segment_id uuid REFERENCES usage_segments (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    resource text NOT NULL DEFAULT 'gpu' CONSTRAINT entry_resource CHECK (resource IN ('gpu', 'cpu', 'memory')),
    mode text,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL CONSTRAINT entry_order CHECK (ended_at > started_at),
    -- Thousandths of a GPU times microseconds that were held: exact; 0 of what is no use of GPUs.
    gpu_milli_micros numeric(38, 0) NOT NULL,
    -- The same of capacity that was committed and not used.
    unused_milli_micros numeric(38, 0) NOT NULL DEFAULT 0,
    -- Absent where no price covers it: unpriced, never 0.
    price_id uuid REFERENCES prices (id),
    factor numeric(24, 12) NOT NULL DEFAULT 1,
    amount numeric(38, 18),
    list_amount numeric(38, 18),
    effective_amount numeric(38, 18),
    currency text,
    reverses bigint CONSTRAINT reversed_once UNIQUE REFERENCES ledger_entries (id),
    -- How often its time has been rated anew.
    revision integer NOT NULL DEFAULT 0,
    commitment_id uuid REFERENCES commitments (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT entry_priced CHECK ((amount IS NULL) = (currency IS NULL)
        AND (amount IS NULL) = (list_amount IS NULL) AND (amount IS NULL) = (effective_amount IS NULL)
        AND (kind IN ('credit', 'committed') OR (price_id IS NULL) = (amount IS NULL))),
    CONSTRAINT entry_of_use CHECK (num_nulls(user_id, job_id, segment_id, mode) = CASE kind WHEN 'committed' THEN 4 ELSE 0 END),
    CONSTRAINT entry_reverses CHECK ((kind = 'reversal') = (reverses IS NOT NULL)),
    CONSTRAINT entry_committed CHECK ((kind = 'committed') = (commitment_id IS NOT NULL))
);
CREATE UNIQUE INDEX entry_once ON ledger_entries (segment_id, resource, started_at, revision)
    WHERE kind IN ('usage', 'correction');
CREATE UNIQUE INDEX credited_once ON ledger_entries (segment_id) WHERE kind = 'credit';
CREATE UNIQUE INDEX committed_once ON ledger_entries (commitment_id, period_id) WHERE kind = 'committed';
CREATE INDEX ledger_entries_by_team ON ledger_entries (team_id, started_at);
CREATE INDEX ledger_entries_by_job ON ledger_entries (job_id);
CREATE INDEX ledger_entries_by_time ON ledger_entries (started_at);
CREATE INDEX ledger_entries_by_period ON ledger_entries (period_id, team_id, id);
CREATE INDEX usage_segments_unrated ON usage_segments (id)
    WHERE kind = 'charged' AND (ended_at IS NULL OR rated_until IS NULL OR rated_until < ended_at);
-- What is closed takes nothing more, whoever enters it.
CREATE FUNCTION allotment.refuse_closed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM entered AS e JOIN billing_periods AS p ON p.id = e.period_id
               WHERE p.state NOT IN ('open', 'closing')) THEN
        RAISE EXCEPTION 'a closed billing period takes no more entries'
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'period_closed';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse_closed AFTER INSERT ON ledger_entries REFERENCING NEW TABLE AS entered
    FOR EACH STATEMENT EXECUTE FUNCTION allotment.refuse_closed();
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

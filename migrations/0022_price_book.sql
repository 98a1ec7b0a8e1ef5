-- How use is priced: what is in force when, by what it is multiplied, and what is rated anew.

CREATE AGGREGATE allotment.product (numeric) (SFUNC = numeric_mul, STYPE = numeric, INITCOND = '1');

-- The price in force at a time: the one place that says which of the book's rows that is. A price of a
-- profile goes before one of its mode; of two from the same time the one put in force later. The lines of
-- `draft` count as if they had always been in force: that is how a preview asks.
CREATE FUNCTION allotment.price_at(pool uuid, resource text, mode text, profile text, at timestamptz, draft uuid)
    RETURNS TABLE (id uuid, per_gpu_hour numeric, list_per_hour numeric, effective_per_hour numeric, currency text, mig_profile text)
    LANGUAGE sql STABLE
    AS $$
        SELECT p.id, p.per_gpu_hour, p.list_per_hour, p.effective_per_hour, p.currency, p.mig_profile
        FROM prices AS p
        LEFT JOIN price_books AS b ON b.id = p.book_id
        WHERE p.pool_id = price_at.pool AND p.resource = price_at.resource
            AND (p.mode = price_at.mode OR p.mode IS NULL)
            AND (p.mig_profile IS NULL OR p.mig_profile = price_at.profile)
            AND (p.book_id = price_at.draft
                 OR ((p.book_id IS NULL OR b.activated_at IS NOT NULL) AND p.effective_from <= price_at.at))
        ORDER BY p.mig_profile IS NULL, (p.book_id = price_at.draft) IS NOT TRUE, p.effective_from DESC,
            COALESCE(b.activated_at, p.created_at) DESC, p.id
        LIMIT 1
    $$;

-- By what the prices of a pool are multiplied at a time, by name: the latest of each.
CREATE FUNCTION allotment.factors_at(pool uuid, at timestamptz, draft uuid) RETURNS SETOF price_factors
    LANGUAGE sql STABLE
    AS $$
        SELECT DISTINCT ON (f.kind, f.name) f.*
        FROM price_factors AS f
        JOIN price_books AS b ON b.id = f.book_id
        WHERE f.pool_id = factors_at.pool
            AND (f.book_id = factors_at.draft OR (b.activated_at IS NOT NULL AND f.effective_from <= factors_at.at))
        ORDER BY f.kind, f.name, (f.book_id = factors_at.draft) IS NOT TRUE, f.effective_from DESC, b.activated_at DESC, f.id
    $$;

-- Whether a weekly window holds at a time of its own clocks.
CREATE FUNCTION allotment.within_week(days integer[], from_minute integer, to_minute integer, shown timestamp) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT CASE
            WHEN from_minute < to_minute THEN
                EXTRACT(ISODOW FROM shown)::integer = ANY (days) AND now.minute >= from_minute AND now.minute < to_minute
            ELSE (EXTRACT(ISODOW FROM shown)::integer = ANY (days) AND now.minute >= from_minute)
                OR (EXTRACT(ISODOW FROM shown - interval '1 day')::integer = ANY (days) AND now.minute < to_minute)
            END
        FROM (SELECT EXTRACT(EPOCH FROM shown - date_trunc('day', shown)) / 60 AS minute) AS now
    $$;

-- A span cut at full hours and wherever a price, a factor, a weekly window or a billing period begins or
-- ends, so that each piece has one price or none.
CREATE FUNCTION allotment.price_cuts(pool uuid, began timestamptz, ended timestamptz, draft uuid)
    RETURNS TABLE (started_at timestamptz, ended_at timestamptz)
    LANGUAGE sql STABLE
    AS $$
        SELECT cuts.at, LEAD(cuts.at, 1, price_cuts.ended) OVER (ORDER BY cuts.at)
        FROM (
            SELECT price_cuts.began AS at
            UNION
            SELECT hours.at
            FROM generate_series(date_trunc('hour', price_cuts.began, 'UTC') + interval '1 hour', price_cuts.ended, interval '1 hour') AS hours (at)
            UNION
            SELECT p.effective_from FROM prices AS p WHERE p.pool_id = price_cuts.pool
            UNION
            SELECT f.effective_from FROM price_factors AS f WHERE f.pool_id = price_cuts.pool
            UNION
            SELECT b.started_at FROM billing_periods AS b
            UNION
            SELECT (days.day + edge.minute * interval '1 minute') AT TIME ZONE f.time_zone
            FROM price_factors AS f
            CROSS JOIN LATERAL generate_series(
                date_trunc('day', price_cuts.began AT TIME ZONE f.time_zone),
                price_cuts.ended AT TIME ZONE f.time_zone, interval '1 day') AS days (day)
            CROSS JOIN LATERAL (VALUES (f.from_minute), (f.to_minute)) AS edge (minute)
            WHERE f.pool_id = price_cuts.pool AND f.kind = 'weekly'
        ) AS cuts
        WHERE cuts.at >= price_cuts.began AND cuts.at < price_cuts.ended
    $$;

-- What a segment costs between two times, in pieces: its GPU always, priced or not; its cores and memory where
-- the book prices them. Rating, reports, rating anew and previews all ask here, so that they cannot differ in
-- their arithmetic. A GPU is billed by `billed_milli`, an instance whose profile has a price as one.
CREATE FUNCTION allotment.priced(s usage_segments, began timestamptz, ended timestamptz, draft uuid) RETURNS TABLE (
    resource text, started_at timestamptz, ended_at timestamptz, gpu_milli_micros numeric,
    price_id uuid, factor numeric, amount numeric, list_amount numeric, effective_amount numeric, currency text)
    LANGUAGE sql STABLE
    AS $$
        SELECT r.resource, piece.started_at, piece.ended_at,
            CASE r.resource WHEN 'gpu' THEN (s).gpus_milli * long.micros ELSE 0 END,
            price.id, by.factor,
            -- Thousandths and microseconds of an hour: 1000 * 3600 * 10^6. The wide cast keeps the
            -- division's digits, which would else be cut at sixteen.
            round((price.per_gpu_hour * by.factor * units.milli * long.micros)::numeric(96, 36) / 3600000000000, 18),
            round((price.list_per_hour * by.factor * units.milli * long.micros)::numeric(96, 36) / 3600000000000, 18),
            round((price.effective_per_hour * by.factor * units.milli * long.micros)::numeric(96, 36) / 3600000000000, 18),
            price.currency
        FROM unnest(CASE WHEN (s).cpus_milli > 0 OR (s).memory_mib > 0 THEN ARRAY['gpu', 'cpu', 'memory'] ELSE ARRAY['gpu'] END)
            AS r (resource)
        CROSS JOIN LATERAL allotment.price_cuts((s).pool_id, began, ended, draft) AS piece
        CROSS JOIN LATERAL (SELECT trunc(EXTRACT(EPOCH FROM piece.ended_at - piece.started_at) * 1000000) AS micros) AS long
        LEFT JOIN LATERAL allotment.price_at((s).pool_id, r.resource, (s).mode, (s).mig_profile, piece.started_at, draft) AS price ON true
        CROSS JOIN LATERAL (
            SELECT CASE r.resource
                WHEN 'cpu' THEN (s).cpus_milli::numeric
                -- Thousandths of a GiB: 1000 / 1024 of a MiB.
                WHEN 'memory' THEN (s).memory_mib * 0.9765625
                ELSE CASE WHEN price.mig_profile IS NULL THEN (s).billed_milli ELSE 1000 END END AS milli
        ) AS units
        CROSS JOIN LATERAL (
            SELECT round(allotment.product(f.factor), 12) AS factor
            FROM allotment.factors_at((s).pool_id, piece.started_at, draft) AS f
            WHERE CASE f.kind
                WHEN 'preemptible' THEN (s).preemptible
                WHEN 'borrowed' THEN (s).borrowed
                ELSE allotment.within_week(f.days, f.from_minute, f.to_minute, piece.started_at AT TIME ZONE f.time_zone) END
        ) AS by
        WHERE r.resource = 'gpu' OR price.id IS NOT NULL
    $$;

-- What of the charged segments no ledger entry covers yet; of open segments what lies before `open_until`
-- and before their node's last heartbeat: what comes after that is the operator's if the node is
-- lost, and no figure that was shown may shrink. Rating copies it into the ledger, and reports
-- add it to the ledger.
CREATE FUNCTION allotment.unrated_pieces(open_until timestamptz) RETURNS TABLE (
    segment_id uuid, team_id uuid, user_id uuid, job_id uuid, pool_id uuid, mode text, resource text,
    started_at timestamptz, ended_at timestamptz, gpu_milli_micros numeric,
    price_id uuid, factor numeric, amount numeric, list_amount numeric, effective_amount numeric, currency text)
    LANGUAGE sql STABLE
    AS $$
        SELECT s.id, s.team_id, s.user_id, s.job_id, s.pool_id, s.mode, piece.resource,
            piece.started_at, piece.ended_at, piece.gpu_milli_micros,
            piece.price_id, piece.factor, piece.amount, piece.list_amount, piece.effective_amount, piece.currency
        FROM usage_segments AS s
        JOIN nodes AS n ON n.id = s.node_id
        CROSS JOIN LATERAL (
            SELECT COALESCE(s.rated_until, s.started_at) AS began,
                COALESCE(s.ended_at, LEAST(open_until, n.last_heartbeat_at)) AS ended
        ) AS span
        CROSS JOIN LATERAL allotment.priced(s, span.began, span.ended, NULL) AS piece
        WHERE s.kind = 'charged' AND (s.ended_at IS NULL OR s.rated_until IS NULL OR s.rated_until < s.ended_at)
            AND span.began < span.ended
    $$;

-- The period that bills what was used at a time: its own while that is open, else the next that is.
CREATE FUNCTION allotment.billing_period(at timestamptz) RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
        SELECT p.id
        FROM billing_periods AS p
        WHERE p.state = 'open' AND p.ended_at > billing_period.at
        ORDER BY p.started_at
        LIMIT 1
    $$;

-- A change of price that lies in what is rated already: the ledger of its pool is gone through from then on.
CREATE TABLE reratings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    from_at timestamptz NOT NULL,
    requested_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    -- The last ledger entry that was looked at.
    looked_at bigint NOT NULL DEFAULT 0,
    entered bigint NOT NULL DEFAULT 0,
    done_at timestamptz
);
CREATE INDEX reratings_due ON reratings (id) WHERE done_at IS NULL;

-- What a closed period bills a team, with a digest of the ledger rows that it was added up from.
CREATE TABLE statements (
    id uuid PRIMARY KEY,
    period_id uuid NOT NULL REFERENCES billing_periods (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    entries bigint NOT NULL,
    sha256 text NOT NULL CONSTRAINT statement_digest CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    currency text,
    total numeric(38, 2) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT statement_once UNIQUE (period_id, team_id)
);
CREATE TABLE statement_lines (
    statement_id uuid NOT NULL REFERENCES statements (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    place integer NOT NULL,
    kind text NOT NULL,
    pool_id uuid NOT NULL REFERENCES pools (id),
    mode text,
    resource text NOT NULL,
    gpu_milli_micros numeric(38, 0) NOT NULL,
    unused_milli_micros numeric(38, 0) NOT NULL,
    -- As it is charged: exact, and rounded so that the lines add up to the total.
    exact numeric(38, 18) NOT NULL,
    amount numeric(38, 2) NOT NULL,
    PRIMARY KEY (statement_id, place)
);
CREATE TRIGGER statements_append_only BEFORE UPDATE OR DELETE ON statements
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();
CREATE TRIGGER statement_lines_append_only BEFORE UPDATE OR DELETE ON statement_lines
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

-- The digest of what a period bills a team: of its ledger rows in the order of their numbers, a line each.
CREATE FUNCTION allotment.ledger_digest(period uuid, team uuid) RETURNS TABLE (entries bigint, sha256 text)
    LANGUAGE sql STABLE
    AS $$
        SELECT count(*), encode(sha256(convert_to(COALESCE(string_agg(
            concat_ws('|', e.id, e.kind, e.resource, e.pool_id, e.job_id, e.segment_id,
                to_char(e.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                to_char(e.ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                e.gpu_milli_micros, e.unused_milli_micros, COALESCE(e.amount::text, 'unpriced'), e.currency,
                e.reverses, e.revision),
            E'\n' ORDER BY e.id), ''), 'UTF8')), 'hex')
        FROM ledger_entries AS e
        WHERE e.period_id = ledger_digest.period AND e.team_id = ledger_digest.team
    $$;

GRANT SELECT ON statements, statement_lines TO allotment_app;
GRANT SELECT, INSERT ON statements, statement_lines TO allotment_system;
GRANT SELECT, INSERT ON reratings TO allotment_app;
GRANT SELECT, INSERT, UPDATE ON reratings TO allotment_system;
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['statements', 'statement_lines', 'reratings'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['statements', 'statement_lines'] LOOP
        EXECUTE format('CREATE POLICY own_team ON %I FOR SELECT TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
    CREATE POLICY platform_only ON reratings TO allotment_app USING (allotment.sees_all()) WITH CHECK (allotment.sees_all());
END $$;

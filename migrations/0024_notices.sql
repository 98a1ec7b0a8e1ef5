-- Where notices go, who asked to hear of what, what is to be delivered, what came of it, and reports on schedule.

CREATE TABLE webhooks (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    name text NOT NULL CONSTRAINT webhook_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    url text NOT NULL CONSTRAINT webhook_url_length CHECK (length(url) BETWEEN 1 AND 2048),
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    -- What was delivered names it for as long as that is kept.
    removed_at timestamptz
);
CREATE UNIQUE INDEX webhook_name_taken ON webhooks (team_id, name) WHERE removed_at IS NULL;

-- The keys that a webhook's messages are signed with. The system alone reads them; a person who makes one is told
-- it once. While keys change there are two, and each message bears a signature by either.
CREATE TABLE webhook_keys (
    id uuid PRIMARY KEY,
    webhook_id uuid NOT NULL REFERENCES webhooks (id),
    secret text NOT NULL CONSTRAINT webhook_key_length CHECK (length(secret) = 64),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    -- From then on nothing is signed with it; absent for the newest.
    ends_at timestamptz
);
CREATE UNIQUE INDEX one_newest_webhook_key ON webhook_keys (webhook_id) WHERE ends_at IS NULL;

-- Who hears of what: a team, with all below it, or one person's work in it.
CREATE TABLE subscriptions (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    kind text NOT NULL CONSTRAINT subscription_kind CHECK (kind IN ('budget_threshold', 'node_lost', 'job_ended')),
    -- Only of this person's jobs.
    user_id uuid REFERENCES users (id),
    email text CONSTRAINT subscription_email CHECK (length(email) BETWEEN 3 AND 254),
    webhook_id uuid REFERENCES webhooks (id),
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    CONSTRAINT subscription_target CHECK (num_nonnulls(email, webhook_id) = 1),
    CONSTRAINT subscription_person CHECK (user_id IS NULL OR kind = 'job_ended'),
    CONSTRAINT subscription_taken UNIQUE NULLS NOT DISTINCT (team_id, kind, user_id, email, webhook_id)
);
CREATE INDEX subscriptions_by_kind ON subscriptions (kind, team_id);

-- A report that is made by itself. `covers`: the last whole day, week or month before it is due, in its zone.
CREATE TABLE schedules (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    name text NOT NULL CONSTRAINT schedule_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    kind text NOT NULL CONSTRAINT schedule_kind CHECK (kind IN ('usage_statement')),
    format text NOT NULL CONSTRAINT schedule_format CHECK (format IN ('csv', 'json')),
    covers text NOT NULL CONSTRAINT schedule_covers CHECK (covers IN ('day', 'week', 'month')),
    cron text NOT NULL,
    time_zone text NOT NULL,
    emails text[] NOT NULL,
    webhook_ids uuid[] NOT NULL,
    -- When it is due next: what lies before now is made up, in order.
    next_at timestamptz NOT NULL,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    removed_at timestamptz,
    version bigint NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX schedule_name_taken ON schedules (team_id, name) WHERE removed_at IS NULL;
CREATE INDEX schedules_due ON schedules (next_at) WHERE removed_at IS NULL;

-- One report of one period, with what it said: a repeat sends the same.
CREATE TABLE schedule_runs (
    id uuid PRIMARY KEY,
    schedule_id uuid NOT NULL REFERENCES schedules (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    due_at timestamptz NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL CONSTRAINT run_order CHECK (ends_at > starts_at),
    made_at timestamptz NOT NULL DEFAULT allotment.clock(),
    file_name text NOT NULL,
    media_type text NOT NULL,
    content text NOT NULL,
    CONSTRAINT one_report_per_period UNIQUE (schedule_id, starts_at)
);
CREATE INDEX schedule_runs_by_team ON schedule_runs (team_id, due_at);

-- What is to be delivered to one address: written in the transaction of its cause, and once for each cause (`key`).
CREATE TABLE deliveries (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    seq bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT delivery_seq UNIQUE,
    team_id uuid NOT NULL REFERENCES teams (id),
    kind text NOT NULL CONSTRAINT delivery_kind CHECK (kind IN ('budget_threshold', 'node_lost', 'job_ended', 'report')),
    key text NOT NULL,
    -- What it is about. To one webhook nothing of it goes out before what was written of it earlier.
    about text NOT NULL,
    email text,
    webhook_id uuid REFERENCES webhooks (id),
    payload jsonb NOT NULL,
    run_id uuid REFERENCES schedule_runs (id),
    state text NOT NULL DEFAULT 'waiting' CONSTRAINT delivery_state CHECK (state IN ('waiting', 'delivered', 'dead')),
    tries integer NOT NULL DEFAULT 0,
    -- How many tries there had been when it was last sent on its way.
    tries_before integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT allotment.clock(),
    -- A replica is at it until then.
    claimed_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    delivered_at timestamptz,
    CONSTRAINT delivery_target CHECK (num_nonnulls(email, webhook_id) = 1),
    CONSTRAINT delivery_once UNIQUE NULLS NOT DISTINCT (key, email, webhook_id),
    CONSTRAINT delivery_done CHECK ((state = 'delivered') = (delivered_at IS NOT NULL))
);
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE state = 'waiting';
CREATE INDEX deliveries_in_order ON deliveries (webhook_id, about, seq) WHERE state = 'waiting';
CREATE INDEX deliveries_by_team ON deliveries (team_id, seq);
CREATE INDEX deliveries_by_age ON deliveries (created_at);

-- What came of each try.
CREATE TABLE delivery_tries (
    delivery_id uuid NOT NULL REFERENCES deliveries (id) ON DELETE CASCADE,
    team_id uuid NOT NULL REFERENCES teams (id),
    number integer NOT NULL,
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    delivered boolean NOT NULL,
    -- HTTP's status, where there was an answer.
    status integer,
    detail text NOT NULL,
    took_ms integer NOT NULL,
    PRIMARY KEY (delivery_id, number)
);

-- Writes what is to be told of jobs that have just ended, whoever ended them: a person who cancels a job need not see
-- what teams above have asked for. Of a job that runs again later each end is told.
CREATE FUNCTION allotment.tell_jobs_ended(ended uuid[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        INSERT INTO deliveries (team_id, kind, key, about, email, webhook_id, payload)
        SELECT s.team_id, 'job_ended', 'job_ended/' || j.id || '/' || j.version, 'job/' || j.id, s.email, s.webhook_id,
            jsonb_build_object('job', j.id, 'name', j.name, 'team', t.name, 'user', u.name, 'state', j.state,
                'reason', j.reason, 'message', j.message, 'exit_code', j.exit_code, 'ended_at', j.finished_at)
        FROM jobs AS j
        JOIN teams AS t ON t.id = j.team_id
        JOIN users AS u ON u.id = j.user_id
        CROSS JOIN LATERAL (
            WITH RECURSIVE path AS (
                SELECT j.team_id AS id
                UNION
                SELECT up.parent_id FROM teams AS up JOIN path ON path.id = up.id WHERE up.parent_id IS NOT NULL
            )
            SELECT DISTINCT ON (s.email, s.webhook_id) s.team_id, s.email, s.webhook_id
            FROM subscriptions AS s
            JOIN path ON path.id = s.team_id
            WHERE s.kind = 'job_ended' AND (s.user_id IS NULL OR s.user_id = j.user_id)
            ORDER BY s.email, s.webhook_id, s.team_id
        ) AS s
        WHERE EXISTS (SELECT FROM subscriptions AS any_of WHERE any_of.kind = 'job_ended') AND j.id = ANY (ended)
        ON CONFLICT ON CONSTRAINT delivery_once DO NOTHING
    $$;
GRANT CREATE ON SCHEMA allotment TO allotment_system;
ALTER FUNCTION allotment.tell_jobs_ended(uuid[]) OWNER TO allotment_system;
REVOKE CREATE ON SCHEMA allotment FROM allotment_system;
REVOKE ALL ON FUNCTION allotment.tell_jobs_ended(uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION allotment.tell_jobs_ended(uuid[]) TO allotment_app, allotment_system;

GRANT SELECT, INSERT, UPDATE ON webhooks, schedules, deliveries TO allotment_app, allotment_system;
GRANT SELECT, INSERT, DELETE ON subscriptions TO allotment_app, allotment_system;
GRANT SELECT ON schedule_runs, delivery_tries TO allotment_app;
GRANT SELECT, INSERT, DELETE ON schedule_runs, delivery_tries TO allotment_system;
GRANT DELETE ON deliveries TO allotment_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON webhook_keys TO allotment_system;
GRANT INSERT, SELECT (id, webhook_id, created_at, ends_at), UPDATE (ends_at) ON webhook_keys TO allotment_app;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['webhooks', 'webhook_keys', 'subscriptions', 'schedules', 'schedule_runs', 'deliveries', 'delivery_tries'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        CONTINUE WHEN t = 'webhook_keys';
        EXECUTE format(
            'CREATE POLICY own_team ON %I TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams()))) '
            'WITH CHECK (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
END $$;
CREATE POLICY own_team ON webhook_keys TO allotment_app
    USING (EXISTS (SELECT FROM webhooks AS w WHERE w.id = webhook_id))
    WITH CHECK (EXISTS (SELECT FROM webhooks AS w WHERE w.id = webhook_id));

-- What jobs waited for, for how long, and how far what they were told of their start was out.

-- What bound a waiting job: one row for each stretch in which the verdict's code and scope stayed.
-- They are kept as events are.
CREATE TABLE waits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    -- The verdict as it was when it began to hold, as its team may read it.
    code text NOT NULL,
    -- Empty where stretches of several scopes became one row.
    scope text NOT NULL,
    message text NOT NULL,
    need_milli bigint NOT NULL,
    have_milli bigint NOT NULL,
    -- The first stretch begins with the wait: the time until a job is looked at counts as what was
    -- found then, so that all stretches of a wait add up to it.
    began_at timestamptz NOT NULL,
    -- Absent while it holds.
    ended_at timestamptz,
    -- A row may stand for several stretches of one code: how many, and how long they held in all.
    -- What held between them has rows of its own.
    stretches integer NOT NULL DEFAULT 1 CONSTRAINT wait_stretches CHECK (stretches >= 1),
    held_seconds bigint CONSTRAINT wait_held CHECK (held_seconds >= 0),
    CONSTRAINT wait_ended CHECK ((ended_at IS NULL) = (held_seconds IS NULL))
);
-- One cause binds at a time.
CREATE UNIQUE INDEX one_open_wait ON waits (job_id) WHERE ended_at IS NULL;
CREATE INDEX waits_by_job ON waits (job_id, began_at, id);

-- What a job was told of its start, once for each of its waits.
CREATE TABLE expected_starts (
    job_id uuid NOT NULL REFERENCES jobs (id),
    -- The wait, by its beginning.
    queued_at timestamptz NOT NULL,
    team_id uuid NOT NULL REFERENCES teams (id),
    -- The first estimate: when it was told, and what it said.
    told_at timestamptz NOT NULL,
    first_at timestamptz NOT NULL,
    -- When the job got its place and in which pool, and the last estimate before that, where
    -- there still was one. Absent where it waits, or left the queue in another way.
    granted_at timestamptz,
    pool_id uuid REFERENCES pools (id),
    last_at timestamptz,
    PRIMARY KEY (job_id, queued_at),
    CONSTRAINT expected_start_granted CHECK ((granted_at IS NULL) = (pool_id IS NULL))
);
CREATE INDEX expected_starts_by_pool ON expected_starts (pool_id, granted_at) WHERE granted_at IS NOT NULL;

GRANT SELECT, INSERT, UPDATE, DELETE ON waits TO allotment_system;
GRANT SELECT, INSERT, UPDATE ON expected_starts TO allotment_system;
-- Who cancels or suspends a job ends its wait.
GRANT SELECT, UPDATE ON waits TO allotment_app;
GRANT SELECT ON expected_starts TO allotment_app;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['waits', 'expected_starts'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        EXECUTE format(
            'CREATE POLICY own_team ON %I FOR SELECT TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
END $$;
CREATE POLICY own_team_ends ON waits FOR UPDATE TO allotment_app
    USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))
    WITH CHECK (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));

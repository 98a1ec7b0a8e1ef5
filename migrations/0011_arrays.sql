-- Arrays: many jobs that ask for the same, submitted and steered as one.
--
-- An element is a row of `jobs` from the moment when something is done with it: the scheduler
-- brings the next ones into being before it needs them, and whoever steers one by itself brings
-- that one. Until then an element stands where `intent` says. Its spec is its array's.

CREATE TABLE arrays (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    user_id uuid NOT NULL REFERENCES users (id),
    name text NOT NULL,
    kind text NOT NULL CONSTRAINT array_kind CHECK (kind IN ('training', 'batch', 'interactive')),
    class text NOT NULL CONSTRAINT array_class REFERENCES classes (name),
    -- What each element asks for: a spec without its array.
    spec jsonb NOT NULL,
    count integer NOT NULL CONSTRAINT array_count CHECK (count BETWEEN 1 AND 10000),
    -- Most elements that hold their places at once.
    at_most integer CONSTRAINT array_at_most CHECK (at_most BETWEEN 1 AND count),
    -- What people want of it as a whole.
    intent text NOT NULL DEFAULT 'open' CONSTRAINT array_intent CHECK (intent IN ('open', 'suspended', 'cancelled')),
    -- What was known of its wait before the scheduler looked at it.
    reason text,
    message text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    cancelled_at timestamptz CONSTRAINT array_cancelled CHECK ((cancelled_at IS NOT NULL) = (intent = 'cancelled')),
    -- When the scheduler saw that no element is left. Where an array stands is derived from its
    -- elements; this only keeps those that have ended out of what is read again and again.
    finished_at timestamptz,
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX arrays_by_team ON arrays (team_id, created_at DESC, id DESC);
CREATE INDEX arrays_by_age ON arrays (created_at DESC, id DESC);
CREATE INDEX arrays_by_user ON arrays (user_id, team_id);
CREATE INDEX arrays_live ON arrays (id) WHERE finished_at IS NULL;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON arrays
    FOR EACH ROW EXECUTE FUNCTION allotment.record_change('job');

ALTER TABLE jobs
    ADD COLUMN array_id uuid REFERENCES arrays (id),
    ADD COLUMN array_index integer,
    -- An element's is its array's, unless it was changed for that one.
    ALTER COLUMN spec DROP NOT NULL,
    ADD CONSTRAINT job_spec CHECK (spec IS NOT NULL OR array_id IS NOT NULL),
    ADD CONSTRAINT job_element CHECK ((array_id IS NULL) = (array_index IS NULL) AND array_index >= 0),
    ADD CONSTRAINT job_element_once UNIQUE (array_id, array_index);
CREATE INDEX jobs_by_array ON jobs (array_id, state) WHERE array_id IS NOT NULL;
-- Lists show an array as one row: those of jobs pass over elements.
DROP INDEX jobs_by_team;
DROP INDEX jobs_by_age;
CREATE INDEX jobs_by_team ON jobs (team_id, created_at DESC, id DESC) WHERE array_id IS NULL;
CREATE INDEX jobs_by_age ON jobs (created_at DESC, id DESC) WHERE array_id IS NULL;

GRANT SELECT, INSERT, UPDATE ON arrays TO allotment_app, allotment_system;
ALTER TABLE arrays ENABLE ROW LEVEL SECURITY;
ALTER TABLE arrays FORCE ROW LEVEL SECURITY;
CREATE POLICY system_works ON arrays TO allotment_system USING (true) WITH CHECK (true);
CREATE POLICY own_team ON arrays TO allotment_app
    USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))
    WITH CHECK (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));

-- Whoever submitted an array of a team is known to it, as who submitted a job is.
DROP POLICY self_and_team_mates ON users;
CREATE POLICY self_and_team_mates ON users FOR SELECT TO allotment_app USING (
    allotment.sees_all()
    OR id = allotment.asker()
    OR EXISTS (
        SELECT FROM jobs AS j
        WHERE j.user_id = users.id AND j.team_id = ANY (ARRAY (SELECT allotment.own_teams())))
    OR EXISTS (
        SELECT FROM arrays AS r
        WHERE r.user_id = users.id AND r.team_id = ANY (ARRAY (SELECT allotment.own_teams())))
    OR id IN (SELECT m.user_id FROM memberships AS m WHERE m.team_id = ANY (ARRAY (SELECT allotment.own_teams()))));

-- What was taken from whom, for whom and by which rule; and who is short of its own, since when.

-- One row for each time that running work gave way: as a whole, with its highest ranks, or to another
-- place. The bounds on how often a workload and a team may be made to are counted from these rows.
CREATE TABLE evictions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    -- Whose work it was.
    team_id uuid NOT NULL REFERENCES teams (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    kind text NOT NULL CONSTRAINT eviction_kind CHECK (kind IN ('preemption', 'shrink', 'move')),
    rule text NOT NULL CONSTRAINT eviction_rule CHECK (rule IN (
        'reclaim', 'priority', 'share', 'consolidation', 'reservation', 'drain', 'drain_deadline')),
    -- For whom: a job or a booking, of a team. Nobody, where its node was emptied.
    for_team_id uuid REFERENCES teams (id),
    for_job_id uuid REFERENCES jobs (id),
    for_booking text,
    workers_before integer NOT NULL,
    workers_after integer NOT NULL,
    -- What it gave up, and how many whole devices were among that.
    gpus_milli bigint NOT NULL CONSTRAINT eviction_gpus CHECK (gpus_milli >= 0),
    devices integer NOT NULL CONSTRAINT eviction_devices CHECK (devices >= 0),
    -- Work since its last checkpoint; 0 where it turned out to be done before the stop arrived.
    lost_gpu_milli_seconds bigint NOT NULL CONSTRAINT eviction_loss CHECK (lost_gpu_milli_seconds >= 0),
    CONSTRAINT eviction_workers CHECK (workers_before > workers_after AND workers_after >= 0),
    CONSTRAINT eviction_shrinks CHECK ((workers_after > 0) = (kind = 'shrink')),
    CONSTRAINT eviction_for CHECK (
        num_nonnulls(for_job_id, for_booking) <= 1
        AND (for_team_id IS NULL) = (num_nonnulls(for_job_id, for_booking) = 0))
);
CREATE INDEX evictions_by_job ON evictions (job_id, id);
CREATE INDEX evictions_by_team ON evictions (team_id, id);
CREATE INDEX evictions_by_time ON evictions (at);
GRANT SELECT ON evictions TO allotment_app;
GRANT SELECT, INSERT, UPDATE ON evictions TO allotment_system;

-- Teams under their guarantee in a pool while work of theirs waits, as the leader last saw them. The
-- moment itself is the row: what is true now follows from what is held and what waits, and who is not
-- short any more has none.
CREATE TABLE starved_teams (
    team_id uuid NOT NULL REFERENCES teams (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    since timestamptz NOT NULL,
    PRIMARY KEY (team_id, pool_id)
);
GRANT SELECT ON starved_teams TO allotment_app;
GRANT SELECT, INSERT, DELETE ON starved_teams TO allotment_system;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['evictions', 'starved_teams'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        -- The team that it was taken from reads of it; the system alone writes.
        EXECUTE format(
            'CREATE POLICY own_team ON %I FOR SELECT TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
END $$;

-- What was taken from whom, for whom and by which rule; and who is short of its own, since when.

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
    FOREACH t IN ARRAY ARRAY['starved_teams'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        -- The team that it was taken from reads of it; the system alone writes.
        EXECUTE format(
            'CREATE POLICY own_team ON %I FOR SELECT TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
END $$;

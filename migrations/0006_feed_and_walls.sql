-- The change feed, and the walls between teams.

-- What changed, for the scheduler's world and for live pages. Read where
-- xid < pg_snapshot_xmin(pg_current_snapshot()), in (xid, id) order.
CREATE TABLE changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    noun text NOT NULL,
    object_id uuid,
    team_id uuid,
    node_id uuid,
    job_id uuid
);
CREATE INDEX changes_in_order ON changes (xid, id);
CREATE INDEX changes_by_age ON changes (at);

-- Trigger: records that a row changed. Argument: noun.
CREATE FUNCTION allotment.record_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed jsonb := to_jsonb(COALESCE(NEW, OLD));
BEGIN
    INSERT INTO changes (noun, object_id, team_id, node_id, job_id)
    VALUES (
        TG_ARGV[0],
        (COALESCE(changed ->> 'id', changed ->> 'team_id'))::uuid,
        (changed ->> 'team_id')::uuid,
        (changed ->> 'node_id')::uuid,
        (changed ->> 'job_id')::uuid
    );
    RETURN NULL;
END $$;

DO $$
DECLARE
    feed record;
BEGIN
    FOR feed IN SELECT * FROM (VALUES
        ('teams', 'team'), ('quotas', 'quota'), ('pools', 'pool'), ('devices', 'device'),
        ('jobs', 'job'), ('attempts', 'attempt'), ('assignments', 'assignment')
    ) AS f (table_name, noun) LOOP
        EXECUTE format(
            'CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION allotment.record_change(%L)',
            feed.table_name, feed.noun);
    END LOOP;
END $$;
-- A class has no uuid; a node's heartbeat is no change.
CREATE FUNCTION allotment.record_class_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO changes (noun) VALUES ('class');
    RETURN NULL;
END $$;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON classes
    FOR EACH ROW EXECUTE FUNCTION allotment.record_class_change();
-- Whose rights changed, so that streams that were opened with them look again.
CREATE FUNCTION allotment.record_rights_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed jsonb := to_jsonb(COALESCE(NEW, OLD));
BEGIN
    INSERT INTO changes (noun, object_id) VALUES ('rights', (changed ->> TG_ARGV[0])::uuid);
    RETURN NULL;
END $$;
CREATE TRIGGER record_rights_change AFTER UPDATE ON users
    FOR EACH ROW WHEN ((OLD.platform_role, OLD.disabled_at) IS DISTINCT FROM (NEW.platform_role, NEW.disabled_at))
    EXECUTE FUNCTION allotment.record_rights_change('id');
CREATE TRIGGER record_rights_change AFTER INSERT OR UPDATE OR DELETE ON memberships
    FOR EACH ROW EXECUTE FUNCTION allotment.record_rights_change('user_id');
CREATE TRIGGER record_rights_change AFTER UPDATE ON sessions
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at)
    EXECUTE FUNCTION allotment.record_rights_change('user_id');
CREATE TRIGGER record_insert AFTER INSERT OR DELETE ON nodes
    FOR EACH ROW EXECUTE FUNCTION allotment.record_change('node');
CREATE TRIGGER record_change AFTER UPDATE ON nodes
    FOR EACH ROW WHEN (OLD.version IS DISTINCT FROM NEW.version) EXECUTE FUNCTION allotment.record_change('node');

-- Grants. Nobody but the owner may TRUNCATE, and nothing is granted by default.
GRANT SELECT, INSERT, UPDATE ON teams, users, pools, quotas, nodes, devices, jobs, attempts, assignments,
    assignment_devices, usage_segments, capacity_segments, idempotency_keys TO allotment_app, allotment_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON classes, memberships TO allotment_app, allotment_system;
GRANT DELETE ON idempotency_keys, changes, sessions, replicas TO allotment_system;
GRANT SELECT, INSERT ON prices, price_factors, commitments, events, audit, changes TO allotment_app, allotment_system;
GRANT SELECT ON ledger_entries, billing_periods TO allotment_app;
GRANT SELECT, INSERT, UPDATE ON price_books TO allotment_app, allotment_system;
GRANT SELECT, UPDATE ON organisation TO allotment_app, allotment_system;
GRANT SELECT, INSERT, UPDATE ON billing_periods TO allotment_system;
GRANT SELECT, INSERT ON ledger_entries TO allotment_system;
GRANT SELECT, INSERT, UPDATE ON join_tokens TO allotment_app, allotment_system;
GRANT SELECT, INSERT, UPDATE ON credentials, sessions, authorities, replicas TO allotment_system;

-- Row-level security on every table; what has no policy is denied.
DO $$
DECLARE
    t text;
BEGIN
    FOR t IN SELECT tablename FROM pg_tables
             WHERE schemaname = 'public' AND tablename NOT LIKE '\_sqlx%' AND tablename <> 'transitions' LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
    END LOOP;

    -- A team's own rows.
    FOREACH t IN ARRAY ARRAY['jobs', 'attempts', 'assignments', 'assignment_devices', 'usage_segments',
                             'ledger_entries', 'quotas', 'memberships', 'commitments'] LOOP
        EXECUTE format(
            'CREATE POLICY own_team ON %I TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams()))) '
            'WITH CHECK (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;

    -- What everybody may see and only the platform may change.
    FOREACH t IN ARRAY ARRAY['pools', 'classes', 'nodes', 'devices', 'prices', 'price_factors', 'organisation',
                             'billing_periods', 'epochs'] LOOP
        EXECUTE format('CREATE POLICY everybody_reads ON %I FOR SELECT TO allotment_app USING (allotment.asker() IS NOT NULL)', t);
        EXECUTE format('CREATE POLICY platform_adds ON %I FOR INSERT TO allotment_app WITH CHECK (allotment.sees_all())', t);
        EXECUTE format('CREATE POLICY platform_changes ON %I FOR UPDATE TO allotment_app USING (allotment.sees_all()) WITH CHECK (allotment.sees_all())', t);
        EXECUTE format('CREATE POLICY platform_removes ON %I FOR DELETE TO allotment_app USING (allotment.sees_all())', t);
    END LOOP;

    -- What only the platform may see.
    FOREACH t IN ARRAY ARRAY['join_tokens', 'capacity_segments'] LOOP
        EXECUTE format('CREATE POLICY platform_only ON %I TO allotment_app USING (allotment.sees_all()) WITH CHECK (allotment.sees_all())', t);
    END LOOP;
END $$;

-- A version of the price book is everybody's to know of once it is in force.
CREATE POLICY everybody_reads ON price_books FOR SELECT TO allotment_app USING (
    allotment.sees_all() OR (allotment.asker() IS NOT NULL AND activated_at IS NOT NULL));
CREATE POLICY platform_adds ON price_books FOR INSERT TO allotment_app WITH CHECK (allotment.sees_all());
CREATE POLICY platform_changes ON price_books FOR UPDATE TO allotment_app
    USING (allotment.sees_all()) WITH CHECK (allotment.sees_all());

CREATE POLICY own_and_above ON teams FOR SELECT TO allotment_app USING (
    allotment.sees_all()
    OR id = ANY (ARRAY (SELECT allotment.own_teams()))
    OR id = ANY (ARRAY (SELECT allotment.ancestor_teams())));
CREATE POLICY platform_adds ON teams FOR INSERT TO allotment_app WITH CHECK (allotment.sees_all());
CREATE POLICY platform_changes ON teams FOR UPDATE TO allotment_app
    USING (allotment.sees_all()) WITH CHECK (allotment.sees_all());

-- Whoever submitted work of a team is known to it, member or not: an operator, somebody of the
-- team above, somebody who has left.
CREATE POLICY self_and_team_mates ON users FOR SELECT TO allotment_app USING (
    allotment.sees_all()
    OR id = allotment.asker()
    OR EXISTS (
        SELECT FROM jobs AS j
        WHERE j.user_id = users.id AND j.team_id = ANY (ARRAY (SELECT allotment.own_teams())))
    OR id IN (SELECT m.user_id FROM memberships AS m WHERE m.team_id = ANY (ARRAY (SELECT allotment.own_teams()))));
CREATE POLICY platform_adds ON users FOR INSERT TO allotment_app WITH CHECK (allotment.sees_all());
CREATE POLICY platform_changes ON users FOR UPDATE TO allotment_app
    USING (allotment.sees_all()) WITH CHECK (allotment.sees_all());

CREATE POLICY own_keys ON idempotency_keys TO allotment_app
    USING (principal = allotment.asker()) WITH CHECK (principal = allotment.asker());

-- What belongs to no team (a node's events) holds nothing of any team.
CREATE POLICY own_team ON events FOR SELECT TO allotment_app USING (
    allotment.sees_all() OR team_id IS NULL OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));
CREATE POLICY own_team_adds ON events FOR INSERT TO allotment_app WITH CHECK (
    allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));
-- Whose rights changed is the system's to know.
CREATE POLICY own_team ON changes FOR SELECT TO allotment_app USING (
    allotment.sees_all() OR (team_id IS NULL AND noun <> 'rights') OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));
CREATE POLICY own_team_adds ON changes FOR INSERT TO allotment_app WITH CHECK (
    allotment.sees_all() OR team_id IS NULL OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));
CREATE POLICY platform_reads ON audit FOR SELECT TO allotment_app USING (
    allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())));
-- In one's own name, and for a team to read only where it is one's own.
CREATE POLICY anybody_adds ON audit FOR INSERT TO allotment_app WITH CHECK (
    actor_id = allotment.asker()
    AND (allotment.sees_all() OR team_id IS NULL OR team_id = ANY (ARRAY (SELECT allotment.own_teams()))));

-- How much of each device is in use, without saying whose: the fleet page's neutral cells.
CREATE FUNCTION allotment.device_use() RETURNS TABLE (device_id uuid, mode text, gpus_milli bigint, holders bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        SELECT d.device_id, min(d.mode), sum(d.gpus_milli), count(*)
        FROM assignment_devices AS d
        WHERE d.live
        GROUP BY d.device_id
    $$;
ALTER FUNCTION allotment.device_use() OWNER TO allotment_system;
REVOKE ALL ON FUNCTION allotment.device_use() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION allotment.device_use() TO allotment_app, allotment_system;
REVOKE CREATE ON SCHEMA allotment FROM allotment_system;

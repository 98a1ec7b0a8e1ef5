-- Bookings, weekly windows, and the versions of everything that says who gets what.

-- Capacity booked ahead. Until it begins it is lent, and when it has ended it counts for nothing:
-- no row is changed by that.
CREATE TABLE bookings (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    name text NOT NULL,
    team_id uuid NOT NULL REFERENCES teams (id),
    gpus_milli bigint NOT NULL CONSTRAINT booking_gpus CHECK (gpus_milli BETWEEN 1 AND 10000000000),
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    -- Since when it cannot be had whole, as the product noticed it; absent while it can.
    conflict_since timestamptz,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT booking_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    CONSTRAINT booking_name_taken UNIQUE (pool_id, name),
    CONSTRAINT booking_order CHECK (starts_at < ends_at)
);
CREATE INDEX bookings_by_end ON bookings (ends_at);
CREATE INDEX bookings_by_team ON bookings (team_id);

-- Quotas that hold in place of others for some hours of the week.
CREATE TABLE windows (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    name text NOT NULL,
    days text[] NOT NULL CONSTRAINT window_days CHECK (
        cardinality(days) BETWEEN 1 AND 7 AND days <@ ARRAY['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun']),
    -- Minutes after midnight; one that ends no later than it begins ends on the next day.
    starts_minute smallint NOT NULL CONSTRAINT window_start CHECK (starts_minute BETWEEN 0 AND 1439),
    ends_minute smallint NOT NULL CONSTRAINT window_end CHECK (ends_minute BETWEEN 0 AND 1439),
    time_zone text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT window_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    CONSTRAINT window_name_taken UNIQUE (pool_id, name)
);

CREATE TABLE window_quotas (
    window_id uuid NOT NULL REFERENCES windows (id) ON DELETE CASCADE,
    team_id uuid NOT NULL REFERENCES teams (id),
    guaranteed_milli bigint NOT NULL CONSTRAINT window_quota_guaranteed CHECK (guaranteed_milli BETWEEN 0 AND 10000000000),
    limit_milli bigint CONSTRAINT window_quota_limit CHECK (limit_milli BETWEEN 0 AND 10000000000),
    lend_limit_milli bigint CONSTRAINT window_quota_lend_limit CHECK (lend_limit_milli BETWEEN 0 AND 10000000000),
    weight_milli bigint NOT NULL CONSTRAINT window_quota_weight CHECK (weight_milli BETWEEN 0 AND 1000000000),
    max_per_user_milli bigint CONSTRAINT window_quota_max_per_user CHECK (max_per_user_milli BETWEEN 0 AND 10000000000),
    PRIMARY KEY (window_id, team_id),
    CONSTRAINT window_quota_within_limit CHECK (limit_milli IS NULL OR guaranteed_milli <= limit_milli)
);
CREATE INDEX window_quotas_by_team ON window_quotas (team_id);

-- How pools, classes, quotas, bookings and windows were, each time that one was changed.
CREATE TABLE policy_versions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    noun text NOT NULL CONSTRAINT policy_noun CHECK (noun IN ('pool', 'class', 'quota', 'booking', 'window')),
    -- As kind and name, such as quota/vision/h100.
    object text NOT NULL,
    -- The object's own version; that of a removal is one above its last.
    version bigint NOT NULL,
    pool_id uuid,
    -- The team that may read of it.
    team_id uuid,
    -- Absent where the product itself made it.
    actor_id uuid,
    actor_name text NOT NULL,
    reason text NOT NULL,
    -- Where an earlier version was gone back to: which.
    restored_version bigint,
    -- Absent before it was made.
    before jsonb,
    -- Absent when it was removed.
    after jsonb
);
CREATE INDEX policy_versions_by_object ON policy_versions (object, id);
CREATE INDEX policy_versions_by_time ON policy_versions (at);
-- The classes that ship can be gone back to as well.
INSERT INTO policy_versions (noun, object, version, actor_name, reason, after)
SELECT 'class', 'class/' || name, version, 'allotment', 'shipped',
    jsonb_build_object('priority', priority, 'preemptible', preemptible)
FROM classes ORDER BY name;
-- They age: what is too old is removed by the product alone.
CREATE TRIGGER policy_versions_append_only BEFORE UPDATE ON policy_versions
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON bookings
    FOR EACH ROW EXECUTE FUNCTION allotment.record_change('booking');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON windows
    FOR EACH ROW EXECUTE FUNCTION allotment.record_change('window');

GRANT SELECT, INSERT, UPDATE, DELETE ON bookings, windows, window_quotas TO allotment_app, allotment_system;
GRANT SELECT, INSERT ON policy_versions TO allotment_app, allotment_system;
GRANT DELETE ON policy_versions TO allotment_system;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['bookings', 'windows', 'window_quotas', 'policy_versions'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
    END LOOP;
    -- A team reads its own; only the platform writes.
    FOREACH t IN ARRAY ARRAY['bookings', 'window_quotas', 'policy_versions'] LOOP
        EXECUTE format(
            'CREATE POLICY own_team ON %I FOR SELECT TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['bookings', 'windows', 'window_quotas', 'policy_versions'] LOOP
        EXECUTE format('CREATE POLICY platform_adds ON %I FOR INSERT TO allotment_app WITH CHECK (allotment.sees_all())', t);
        EXECUTE format('CREATE POLICY platform_changes ON %I FOR UPDATE TO allotment_app USING (allotment.sees_all()) WITH CHECK (allotment.sees_all())', t);
        EXECUTE format('CREATE POLICY platform_removes ON %I FOR DELETE TO allotment_app USING (allotment.sees_all())', t);
    END LOOP;
END $$;
-- When the hours are is no secret; what they bring to whom is.
CREATE POLICY everybody_reads ON windows FOR SELECT TO allotment_app USING (allotment.asker() IS NOT NULL);

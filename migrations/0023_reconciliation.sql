-- Nightly reconciliation: of every device and day of the organisation, what was held, idle and down adds up to
-- the time that passed, to the microsecond.

CREATE TABLE reconciled_days (
    day date PRIMARY KEY,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL CONSTRAINT day_order CHECK (ended_at > started_at),
    devices integer NOT NULL,
    -- Of these those whose time does not add up.
    off integer NOT NULL,
    reconciled_at timestamptz NOT NULL DEFAULT allotment.clock()
);
CREATE TABLE reconciliations (
    day date NOT NULL REFERENCES reconciled_days (day),
    device_id uuid NOT NULL REFERENCES devices (id),
    node_id uuid NOT NULL REFERENCES nodes (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    -- Microseconds of the day in which the device was there; of these those in which somebody held some of
    -- it, nobody did and it could be given out, nobody did and it could not.
    wall_micros bigint NOT NULL,
    held_micros bigint NOT NULL,
    idle_micros bigint NOT NULL,
    down_micros bigint NOT NULL,
    -- What the segments of capacity by themselves add up to; where it differs they overlap or leave a gap.
    capacity_micros bigint NOT NULL,
    PRIMARY KEY (day, device_id)
);
CREATE INDEX reconciliations_off ON reconciliations (day, device_id)
    WHERE wall_micros <> held_micros + idle_micros + down_micros OR wall_micros <> capacity_micros;
CREATE TRIGGER reconciliations_append_only BEFORE UPDATE OR DELETE ON reconciliations
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

-- How long ranges last together, in microseconds.
CREATE FUNCTION allotment.micros(ranges tstzmultirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT COALESCE(sum(trunc(EXTRACT(EPOCH FROM upper(r) - lower(r)) * 1000000)), 0)::bigint
        FROM unnest(ranges) AS r
    $$;

GRANT SELECT ON reconciled_days, reconciliations TO allotment_app;
GRANT SELECT, INSERT ON reconciled_days, reconciliations TO allotment_system;
GRANT UPDATE ON reconciled_days TO allotment_system;
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['reconciled_days', 'reconciliations'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        EXECUTE format('CREATE POLICY platform_only ON %I FOR SELECT TO allotment_app USING (allotment.sees_all())', t);
    END LOOP;
END $$;

-- Roles, the clock, and the functions that the walls between teams are built of.
--
-- Three roles: the owner runs migrations and owns everything; `allotment_app` serves people,
-- under row-level security; `allotment_system` serves the scheduler, the agents and the
-- accounts, by explicit policies. Nobody has BYPASSRLS, and every policy is forced on the owner too.

CREATE EXTENSION IF NOT EXISTS btree_gist;

-- Roles belong to the whole cluster: another database may be migrating at the same moment.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['allotment_app', 'allotment_system'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    -- The owner hands functions to the system role, for which it must be a member of it. From
    -- PostgreSQL 16 on the maker of a role is one in name only: hence USAGE, not MEMBER.
    IF NOT pg_has_role(current_user, 'allotment_system', 'USAGE') THEN
        EXECUTE format('GRANT allotment_system TO %I', current_user);
    END IF;
END $$;

CREATE SCHEMA allotment;
GRANT USAGE ON SCHEMA allotment TO allotment_app, allotment_system;
GRANT USAGE ON SCHEMA public TO allotment_app, allotment_system;
-- SECURITY DEFINER functions below are handed to the system role, which must be able to own them there.
GRANT CREATE ON SCHEMA allotment TO allotment_system;

-- The only clock that decides or bills. Tests and simulated days replace it.
CREATE FUNCTION allotment.clock() RETURNS timestamptz
    LANGUAGE sql VOLATILE
    AS $$ SELECT clock_timestamp() $$;

-- Who asks, as set by the one function that begins a person's transaction (store::begin_person).
-- After that transaction the settings read as '' on the same connection, hence NULLIF.
CREATE FUNCTION allotment.asker() RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT NULLIF(current_setting('allotment.asker', true), '')::uuid $$;

-- Whether the asker's platform role lets it see every team.
CREATE FUNCTION allotment.sees_all() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT COALESCE(current_setting('allotment.sees_all', true), '') = 'on' $$;

-- The teams that the asker belongs to, with all below them. Used as
-- `team_id = ANY (ARRAY (SELECT allotment.own_teams()))`, which is evaluated once per query.
CREATE FUNCTION allotment.own_teams() RETURNS SETOF uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT unnest(string_to_array(NULLIF(current_setting('allotment.teams', true), ''), ',')::uuid[]) $$;

-- The teams above those, whose names the asker may know and nothing else.
CREATE FUNCTION allotment.ancestor_teams() RETURNS SETOF uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT unnest(string_to_array(NULLIF(current_setting('allotment.ancestors', true), ''), ',')::uuid[]) $$;

-- The legal steps of each state machine; the same as domain::state, which a test compares.
CREATE TABLE transitions (
    machine text NOT NULL,
    from_state text NOT NULL,
    to_state text NOT NULL,
    PRIMARY KEY (machine, from_state, to_state)
);
GRANT SELECT ON transitions TO allotment_app, allotment_system;

INSERT INTO transitions (machine, from_state, to_state)
SELECT m.machine, m.from_state, unnest(m.to_states)
FROM (VALUES
    ('job', 'queued', ARRAY['starting', 'suspended', 'succeeded', 'cancelled', 'failed']),
    ('job', 'starting', ARRAY['running', 'queued', 'preempting', 'suspended', 'cancelling', 'succeeded', 'failed', 'cancelled']),
    ('job', 'running', ARRAY['preempting', 'suspended', 'cancelling', 'succeeded', 'failed', 'queued']),
    ('job', 'preempting', ARRAY['queued', 'suspended', 'cancelling', 'succeeded', 'failed', 'cancelled']),
    ('job', 'suspended', ARRAY['queued', 'cancelling', 'cancelled', 'succeeded', 'failed']),
    ('job', 'cancelling', ARRAY['cancelled', 'succeeded', 'failed']),
    ('attempt', 'starting', ARRAY['running', 'stopping', 'ended']),
    ('attempt', 'running', ARRAY['stopping', 'ended']),
    ('attempt', 'stopping', ARRAY['ended']),
    ('assignment', 'granted', ARRAY['handed_over', 'stopping', 'released', 'fenced']),
    ('assignment', 'handed_over', ARRAY['running', 'stopping', 'cleaning', 'released', 'fenced']),
    ('assignment', 'running', ARRAY['stopping', 'cleaning', 'released', 'fenced']),
    ('assignment', 'stopping', ARRAY['cleaning', 'released', 'fenced']),
    ('assignment', 'cleaning', ARRAY['released', 'fenced']),
    ('node', 'open', ARRAY['cordoned', 'draining', 'retired']),
    ('node', 'cordoned', ARRAY['open', 'draining', 'retired']),
    ('node', 'draining', ARRAY['open', 'cordoned', 'retired']),
    ('reachability', 'ready', ARRAY['unreachable']),
    ('reachability', 'unreachable', ARRAY['ready', 'lost']),
    ('reachability', 'lost', ARRAY['ready']),
    ('device', 'healthy', ARRAY['suspect', 'failed', 'mode_change']),
    ('device', 'suspect', ARRAY['healthy', 'failed']),
    ('device', 'failed', ARRAY['healthy', 'suspect']),
    ('device', 'mode_change', ARRAY['healthy', 'failed']),
    ('price_book', 'draft', ARRAY['active', 'discarded']),
    ('billing_period', 'open', ARRAY['closing']),
    ('billing_period', 'closing', ARRAY['open', 'closed']),
    ('billing_period', 'closed', ARRAY['issued'])
) AS m (machine, from_state, to_states);

-- Trigger: refuses a step that the machine does not have. Arguments: machine, column.
CREATE FUNCTION allotment.check_step() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    before text := to_jsonb(OLD) ->> TG_ARGV[1];
    after text := to_jsonb(NEW) ->> TG_ARGV[1];
BEGIN
    IF before IS DISTINCT FROM after AND NOT EXISTS (
        SELECT FROM transitions
        WHERE machine = TG_ARGV[0] AND from_state = before AND to_state = after
    ) THEN
        RAISE EXCEPTION 'a % cannot go from % to %', TG_ARGV[0], before, after
            USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_step';
    END IF;
    RETURN NEW;
END $$;

-- Trigger: refuses any change of a row that is written once.
CREATE FUNCTION allotment.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% rows are never changed or deleted', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'append_only';
END $$;

-- The epoch fences out a past leader: raised on taking over, checked by every commit of a plan.
CREATE TABLE epochs (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT one_epoch CHECK (only_row),
    timeline bigint NOT NULL,
    number bigint NOT NULL,
    leader text NOT NULL,
    taken_at timestamptz NOT NULL
);
INSERT INTO epochs (timeline, number, leader, taken_at) VALUES (0, 0, 'nobody', allotment.clock());
GRANT SELECT, UPDATE ON epochs TO allotment_system;
GRANT SELECT ON epochs TO allotment_app;

-- The newest migration that is in; null where the schema came another way. Read by servers, which
-- refuse to run on another version than they were built for.
CREATE FUNCTION allotment.schema_version() RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    newest bigint;
BEGIN
    EXECUTE 'SELECT max(version) FROM public._sqlx_migrations WHERE success' INTO newest;
    RETURN newest;
EXCEPTION WHEN undefined_table THEN
    RETURN NULL;
END $$;

DO $$
BEGIN
    IF to_regclass('public._sqlx_migrations') IS NOT NULL THEN
        GRANT SELECT ON public._sqlx_migrations TO allotment_app, allotment_system;
    END IF;
END $$;

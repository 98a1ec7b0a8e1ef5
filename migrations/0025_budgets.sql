-- Budgets: what a team, with all below it, may spend in a period, what was told of it, and what it stops.

CREATE TABLE budgets (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    name text NOT NULL CONSTRAINT budget_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    unit text NOT NULL CONSTRAINT budget_unit CHECK (unit IN ('money', 'gpu_hours')),
    currency text CONSTRAINT budget_currency CHECK (currency ~ '^[A-Z]{3}$'),
    amount numeric(20, 4) NOT NULL CONSTRAINT budget_amount CHECK (amount > 0),
    -- Months and quarters are those of UTC, as everywhere where use is added up.
    period text NOT NULL CONSTRAINT budget_period CHECK (period IN ('month', 'quarter', 'grant')),
    starts_at timestamptz,
    ends_at timestamptz,
    -- [{"measure": "actual", "percent": 80, "action": "notify"}, …], by measure and percent.
    thresholds jsonb NOT NULL,
    -- Whether a job is refused whose least cost passes what is left.
    hard boolean NOT NULL,
    -- What it stops now; kept by the reconciler, read by the scheduler.
    stopped text NOT NULL DEFAULT 'none' CONSTRAINT budget_stopped CHECK (stopped IN ('none', 'borrowing', 'all')),
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    removed_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT budget_money CHECK ((unit = 'money') = (currency IS NOT NULL)),
    CONSTRAINT budget_grant CHECK (
        CASE WHEN period = 'grant' THEN starts_at IS NOT NULL AND ends_at IS NOT NULL AND starts_at < ends_at
             ELSE starts_at IS NULL AND ends_at IS NULL END),
    CONSTRAINT budget_gone CHECK (removed_at IS NULL OR stopped = 'none')
);
CREATE UNIQUE INDEX budget_name_taken ON budgets (team_id, name) WHERE removed_at IS NULL;

-- That a threshold was passed: once in each period, whatever comes after.
CREATE TABLE budget_firings (
    budget_id uuid NOT NULL REFERENCES budgets (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    period_start timestamptz NOT NULL,
    measure text NOT NULL CONSTRAINT firing_measure CHECK (measure IN ('actual', 'forecast')),
    percent integer NOT NULL,
    action text NOT NULL CONSTRAINT firing_action CHECK (action IN ('notify', 'stop_borrowing', 'stop_new')),
    fired_at timestamptz NOT NULL,
    -- What was measured then, of how much.
    measured numeric NOT NULL,
    amount numeric NOT NULL,
    CONSTRAINT threshold_fires_once PRIMARY KEY (budget_id, period_start, measure, percent)
);

-- What a budget stops is a fact of its team, as the scheduler reads it.
CREATE FUNCTION allotment.record_budget_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO changes (noun, object_id, team_id) VALUES ('team', NEW.team_id, NEW.team_id);
    RETURN NULL;
END $$;
CREATE TRIGGER record_change AFTER UPDATE ON budgets
    FOR EACH ROW WHEN (OLD.stopped IS DISTINCT FROM NEW.stopped) EXECUTE FUNCTION allotment.record_budget_change();

GRANT SELECT, INSERT, UPDATE ON budgets TO allotment_app, allotment_system;
GRANT SELECT ON budget_firings TO allotment_app;
GRANT SELECT, INSERT ON budget_firings TO allotment_system;
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['budgets', 'budget_firings'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY system_works ON %I TO allotment_system USING (true) WITH CHECK (true)', t);
        EXECUTE format(
            'CREATE POLICY own_team ON %I TO allotment_app '
            'USING (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams()))) '
            'WITH CHECK (allotment.sees_all() OR team_id = ANY (ARRAY (SELECT allotment.own_teams())))', t);
    END LOOP;
END $$;

-- The hard budgets of a team and of those above it, locked until the transaction ends: who submits work is looked at one
-- after the other, also against budgets of teams above that it may not see.
CREATE FUNCTION allotment.lock_hard_budgets(team uuid) RETURNS SETOF uuid
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
        WITH RECURSIVE path AS (
            SELECT t.id, t.parent_id FROM teams AS t WHERE t.id = lock_hard_budgets.team
            UNION
            SELECT t.id, t.parent_id FROM teams AS t JOIN path ON path.parent_id = t.id
        )
        SELECT b.id FROM budgets AS b
        WHERE b.hard AND b.removed_at IS NULL AND b.team_id IN (SELECT id FROM path)
        ORDER BY b.id
        FOR UPDATE
    $$;
GRANT CREATE ON SCHEMA allotment TO allotment_system;
ALTER FUNCTION allotment.lock_hard_budgets(uuid) OWNER TO allotment_system;
REVOKE CREATE ON SCHEMA allotment FROM allotment_system;
REVOKE ALL ON FUNCTION allotment.lock_hard_budgets(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION allotment.lock_hard_budgets(uuid) TO allotment_app, allotment_system;

-- A budget that stops borrowed work makes what runs of it give way, for nobody.
ALTER TABLE evictions DROP CONSTRAINT eviction_rule;
ALTER TABLE evictions ADD CONSTRAINT eviction_rule CHECK (rule IN (
    'reclaim', 'priority', 'share', 'consolidation', 'reservation', 'drain', 'drain_deadline', 'budget'));

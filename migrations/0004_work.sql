-- Jobs, attempts, assignments, the devices they hold, and events.

CREATE TABLE jobs (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    user_id uuid NOT NULL REFERENCES users (id),
    name text NOT NULL,
    kind text NOT NULL CONSTRAINT job_kind CHECK (kind IN ('training', 'batch', 'interactive')),
    class text NOT NULL CONSTRAINT job_class REFERENCES classes (name),
    spec jsonb NOT NULL,
    state text NOT NULL DEFAULT 'queued' CONSTRAINT job_state CHECK (state IN (
        'queued', 'starting', 'running', 'preempting', 'suspended', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    -- An attempt's end, or the waiting code; and the same in words.
    reason text,
    message text NOT NULL DEFAULT '',
    -- Attempts begun so far.
    attempt integer NOT NULL DEFAULT 0,
    -- Retries spent of the spec's limit, and requeues that were nobody's fault.
    retries_used integer NOT NULL DEFAULT 0,
    requeues integer NOT NULL DEFAULT 0,
    -- Of its last attempt, where one of them decided it.
    exit_code integer,
    exit_signal integer,
    -- Not placed before this time: the spec's, or a retry's back-off.
    not_before timestamptz,
    -- The engine's last verdict while it waits, and room that a plan keeps for it.
    waiting jsonb,
    nominated jsonb,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    queued_at timestamptz NOT NULL DEFAULT allotment.clock(),
    started_at timestamptz,
    finished_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT job_finished CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled')))
);
CREATE INDEX jobs_by_team ON jobs (team_id, created_at DESC, id DESC);
CREATE INDEX jobs_by_user ON jobs (user_id, team_id);
CREATE INDEX jobs_by_age ON jobs (created_at DESC, id DESC);
CREATE INDEX jobs_by_end ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_live ON jobs (id) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE TRIGGER job_step BEFORE UPDATE OF state ON jobs
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('job', 'state');

CREATE TABLE attempts (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    number integer NOT NULL,
    state text NOT NULL DEFAULT 'starting'
        CONSTRAINT attempt_state CHECK (state IN ('starting', 'running', 'stopping', 'ended')),
    -- The end it had, or will have once it has been stopped.
    reason text CONSTRAINT attempt_end CHECK (reason IN (
        'exit', 'signal', 'oom', 'time_limit', 'node_lost', 'start_refused', 'preempted', 'cancelled', 'invalid')),
    message text NOT NULL DEFAULT '',
    exit_code integer,
    exit_signal integer,
    master_node_id uuid REFERENCES nodes (id),
    master_port integer CONSTRAINT attempt_master_port CHECK (master_port BETWEEN 20000 AND 29999),
    grace_ms bigint NOT NULL DEFAULT 30000,
    -- Its gang is not grown before this: a node refused a worker to grow by.
    grow_after timestamptz,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    started_at timestamptz,
    stop_asked_at timestamptz,
    ended_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT attempt_number UNIQUE (job_id, number),
    CONSTRAINT attempt_ended CHECK ((ended_at IS NOT NULL) = (state = 'ended'))
);
-- At most one attempt of a job is live.
CREATE UNIQUE INDEX one_live_attempt ON attempts (job_id) WHERE state <> 'ended';
-- A rendezvous port is its attempt's alone on that node.
CREATE UNIQUE INDEX one_master_port ON attempts (master_node_id, master_port) WHERE state <> 'ended';
CREATE INDEX attempts_live ON attempts (id) WHERE state <> 'ended';
CREATE TRIGGER attempt_step BEFORE UPDATE OF state ON attempts
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('attempt', 'state');

CREATE TABLE assignments (
    id uuid PRIMARY KEY,
    team_id uuid NOT NULL REFERENCES teams (id),
    job_id uuid NOT NULL REFERENCES jobs (id),
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    node_id uuid NOT NULL REFERENCES nodes (id),
    worker integer NOT NULL,
    node_rank integer NOT NULL,
    phase text NOT NULL DEFAULT 'granted' CONSTRAINT assignment_phase CHECK (phase IN (
        'granted', 'handed_over', 'running', 'stopping', 'cleaning', 'released', 'fenced')),
    cpus_milli bigint NOT NULL CONSTRAINT assignment_cpus CHECK (cpus_milli >= 0),
    memory_mib bigint NOT NULL CONSTRAINT assignment_memory CHECK (memory_mib >= 0),
    pid bigint,
    exit_code integer,
    exit_signal integer,
    exit_message text NOT NULL DEFAULT '',
    -- Whether it ended because it had been told to.
    exit_asked boolean NOT NULL DEFAULT false,
    -- When its gang was told to go on without it, and by which rule: its exit counts for nothing.
    dismissed_at timestamptz,
    dismissal text CONSTRAINT assignment_dismissal CHECK (dismissal IN (
        'reclaim', 'priority', 'share', 'consolidation', 'reservation', 'drain', 'start_refused', 'node_lost')),
    -- Between SIGTERM and SIGKILL, where it is not its attempt's.
    grace_ms bigint,
    granted_at timestamptz NOT NULL DEFAULT allotment.clock(),
    handed_over_at timestamptz,
    started_at timestamptz,
    exited_at timestamptz,
    -- When it was released or fenced.
    ended_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT assignment_dismissed CHECK ((dismissed_at IS NULL) = (dismissal IS NULL)),
    CONSTRAINT assignment_ended CHECK ((ended_at IS NOT NULL) = (phase IN ('released', 'fenced')))
);
CREATE INDEX assignments_live ON assignments (node_id) WHERE phase NOT IN ('released', 'fenced');
CREATE INDEX assignments_by_job ON assignments (job_id);
CREATE INDEX assignments_by_attempt ON assignments (attempt_id, worker);
CREATE INDEX assignments_dismissed ON assignments (dismissed_at) WHERE dismissed_at IS NOT NULL;
-- A rank that its gang gave up may be filled anew once the worker that had it has left.
CREATE UNIQUE INDEX one_live_worker ON assignments (attempt_id, worker) WHERE phase NOT IN ('released', 'fenced');
CREATE TRIGGER assignment_step BEFORE UPDATE OF phase ON assignments
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('assignment', 'phase');

-- What an assignment holds of a device. `slots` is a range of places on it: a whole device
-- takes all of [0,2000), a MIG instance its memory slices in [0,8), a fraction one place
-- in [1000,2000). Two live rows never share a place.
CREATE TABLE assignment_devices (
    assignment_id uuid NOT NULL REFERENCES assignments (id),
    team_id uuid NOT NULL REFERENCES teams (id),
    device_id uuid NOT NULL REFERENCES devices (id),
    mode text NOT NULL CONSTRAINT share_mode CHECK (mode IN ('exclusive', 'mig', 'mps', 'time_slice', 'vgpu')),
    gpus_milli integer NOT NULL CONSTRAINT share_amount CHECK (gpus_milli BETWEEN 1 AND 1000),
    memory_mib bigint NOT NULL CONSTRAINT share_memory CHECK (memory_mib >= 0),
    slots int4range NOT NULL CONSTRAINT share_slots CHECK (
        NOT isempty(slots) AND slots <@ int4range(0, 2000) AND (mode <> 'exclusive' OR slots = int4range(0, 2000))),
    live boolean NOT NULL DEFAULT true,
    PRIMARY KEY (assignment_id, device_id, slots),
    CONSTRAINT one_live_holder EXCLUDE USING gist (device_id WITH =, slots WITH &&) WHERE (live)
);
CREATE INDEX assignment_devices_live ON assignment_devices (device_id) WHERE live;

-- Under the device row's lock: one mode, at most one whole device, at most its memory.
CREATE FUNCTION allotment.check_share() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    device_memory bigint;
    held_milli bigint;
    held_memory bigint;
    other_modes bigint;
BEGIN
    SELECT memory_mib INTO device_memory FROM devices WHERE id = NEW.device_id FOR UPDATE;
    SELECT COALESCE(sum(gpus_milli), 0), COALESCE(sum(memory_mib), 0), count(*) FILTER (WHERE mode <> NEW.mode)
    INTO held_milli, held_memory, other_modes
    FROM assignment_devices
    WHERE device_id = NEW.device_id AND live;
    IF held_milli + NEW.gpus_milli > 1000 OR held_memory + NEW.memory_mib > device_memory OR other_modes > 0 THEN
        RAISE EXCEPTION 'device % cannot bear this share', NEW.device_id
            USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'share_fits';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER share_fits BEFORE INSERT ON assignment_devices
    FOR EACH ROW WHEN (NEW.live) EXECUTE FUNCTION allotment.check_share();

-- An assignment that has ended holds nothing.
CREATE FUNCTION allotment.release_shares() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE assignment_devices SET live = false WHERE assignment_id = NEW.id AND live;
    RETURN NULL;
END $$;
CREATE TRIGGER assignment_releases AFTER UPDATE OF phase ON assignments
    FOR EACH ROW WHEN (NEW.phase IN ('released', 'fenced') AND OLD.phase NOT IN ('released', 'fenced'))
    EXECUTE FUNCTION allotment.release_shares();

-- One row per transition of anything; the only source of timelines.
CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    team_id uuid,
    subject text NOT NULL CONSTRAINT event_subject CHECK (subject IN ('job', 'attempt', 'assignment', 'node', 'device')),
    subject_id uuid NOT NULL,
    -- The job that it belongs to, if any, and the node.
    job_id uuid,
    node_id uuid,
    from_state text,
    to_state text NOT NULL,
    actor_kind text NOT NULL CONSTRAINT event_actor_kind CHECK (actor_kind IN ('user', 'scheduler', 'agent', 'system')),
    actor_name text NOT NULL,
    reason text NOT NULL DEFAULT '',
    data jsonb NOT NULL DEFAULT '{}',
    -- What belongs to a job belongs to its team; the rest holds nothing of any team.
    CONSTRAINT event_team CHECK ((job_id IS NULL) = (team_id IS NULL))
);
CREATE INDEX events_by_job ON events (job_id, id);
CREATE INDEX events_by_node ON events (node_id, id);
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

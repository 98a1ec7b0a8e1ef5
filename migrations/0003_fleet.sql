-- Pools, classes, quotas, nodes, devices, and the authority that signs agents' certificates.

CREATE TABLE pools (
    id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT pool_name_taken UNIQUE,
    -- The policy keys of the scenario format, each set; the engine's own type reads and writes it.
    policy jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT pool_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$')
);

CREATE TABLE classes (
    name text PRIMARY KEY,
    priority integer NOT NULL CONSTRAINT class_priority CHECK (priority BETWEEN -1000000 AND 1000000),
    preemptible boolean NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT class_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$')
);

-- The classes that ship; `normal` is that of work which names none. Training is dear to interrupt,
-- a replica moves quickly, elastic batch work gives way first.
INSERT INTO classes (name, priority, preemptible) VALUES
    ('normal', 0, true),
    ('training-high', 100, false),
    ('inference-preemptible', 50, true),
    ('batch-elastic', -50, true);

CREATE TABLE quotas (
    team_id uuid NOT NULL REFERENCES teams (id),
    pool_id uuid NOT NULL REFERENCES pools (id),
    guaranteed_milli bigint NOT NULL CONSTRAINT quota_guaranteed CHECK (guaranteed_milli BETWEEN 0 AND 10000000000),
    limit_milli bigint CONSTRAINT quota_limit CHECK (limit_milli BETWEEN 0 AND 10000000000),
    lend_limit_milli bigint CONSTRAINT quota_lend_limit CHECK (lend_limit_milli BETWEEN 0 AND 10000000000),
    weight_milli bigint NOT NULL DEFAULT 1000 CONSTRAINT quota_weight CHECK (weight_milli BETWEEN 0 AND 1000000000),
    max_per_user_milli bigint CONSTRAINT quota_max_per_user CHECK (max_per_user_milli BETWEEN 0 AND 10000000000),
    version bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (team_id, pool_id),
    CONSTRAINT quota_guarantee_within_limit CHECK (limit_milli IS NULL OR guaranteed_milli <= limit_milli)
);

CREATE TABLE nodes (
    id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT node_name_taken UNIQUE,
    pool_id uuid NOT NULL REFERENCES pools (id),
    intent text NOT NULL DEFAULT 'open'
        CONSTRAINT node_intent CHECK (intent IN ('open', 'cordoned', 'draining', 'retired')),
    intent_reason text NOT NULL DEFAULT '',
    reachability text NOT NULL DEFAULT 'unreachable'
        CONSTRAINT node_reachability CHECK (reachability IN ('ready', 'unreachable', 'lost')),
    -- Certificates of another enrolment are not good any more: a machine installed anew took the name.
    enrolment_id uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The life of the agent process that speaks for the node, the replica that holds its connection,
    -- and how many connections there were.
    incarnation uuid,
    replica uuid,
    connection bigint NOT NULL DEFAULT 0,
    -- Noted when what did not survive another boot has ended.
    boot_id text NOT NULL DEFAULT '',
    -- Facts up to this number of this journal are in the database.
    journal_id uuid,
    last_fact bigint NOT NULL DEFAULT 0,
    last_heartbeat_at timestamptz,
    -- The last heartbeat of the life of its agent before the present one.
    heard_before_life_at timestamptz,
    lease_until timestamptz,
    agent_version text NOT NULL DEFAULT '',
    address text NOT NULL DEFAULT '',
    driver_version text NOT NULL DEFAULT '',
    cpus_milli bigint NOT NULL DEFAULT 0,
    memory_mib bigint NOT NULL DEFAULT 0,
    sharing text[] NOT NULL DEFAULT '{}',
    -- Whether its agent lets several teams share a device by MPS where its pool does.
    mps_across_teams boolean NOT NULL DEFAULT false,
    runners text[] NOT NULL DEFAULT '{}',
    -- Folders below which its jobs may work, as its agent is configured.
    work_roots text[] NOT NULL DEFAULT '{}',
    cgroup text NOT NULL DEFAULT 'none' CONSTRAINT node_cgroup CHECK (cgroup IN ('v2', 'v1', 'none')),
    isolated boolean NOT NULL DEFAULT false,
    checkpoints_shared boolean NOT NULL DEFAULT false,
    warnings text[] NOT NULL DEFAULT '{}',
    labels jsonb NOT NULL DEFAULT '{}',
    nvlink jsonb NOT NULL DEFAULT '[]',
    numa jsonb NOT NULL DEFAULT '[]',
    enrolled_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT node_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$')
);
CREATE INDEX nodes_by_pool ON nodes (pool_id, name);
CREATE TRIGGER node_intent_step BEFORE UPDATE OF intent ON nodes
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('node', 'intent');
CREATE TRIGGER node_reachability_step BEFORE UPDATE OF reachability ON nodes
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('reachability', 'reachability');

CREATE TABLE devices (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES nodes (id),
    uuid text NOT NULL CONSTRAINT device_uuid_taken UNIQUE,
    index integer NOT NULL CONSTRAINT device_index CHECK (index BETWEEN 0 AND 1023),
    -- NVML's name, and the model that it is known by in requests.
    product_name text NOT NULL,
    model text NOT NULL,
    memory_mib bigint NOT NULL CONSTRAINT device_memory CHECK (memory_mib > 0),
    pci_bus_id text NOT NULL DEFAULT '',
    health text NOT NULL DEFAULT 'healthy'
        CONSTRAINT device_health CHECK (health IN ('healthy', 'suspect', 'failed', 'mode_change')),
    health_reason text NOT NULL DEFAULT '',
    first_seen_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX devices_by_node ON devices (node_id, index);
CREATE TRIGGER device_health_step BEFORE UPDATE OF health ON devices
    FOR EACH ROW EXECUTE FUNCTION allotment.check_step('device', 'health');

CREATE TABLE join_tokens (
    id uuid PRIMARY KEY,
    pool_id uuid NOT NULL REFERENCES pools (id),
    secret_hash bytea NOT NULL CONSTRAINT join_token_secret UNIQUE,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_by_node uuid REFERENCES nodes (id)
);

-- The authority that signs servers' and agents' certificates. The system role alone reads it.
CREATE TABLE authorities (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT one_authority CHECK (only_row),
    certificate_der bytea NOT NULL,
    key_der bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT allotment.clock()
);

-- The replicas that run now, and where others reach them.
CREATE TABLE replicas (
    id uuid PRIMARY KEY,
    internal_address text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT allotment.clock(),
    seen_at timestamptz NOT NULL DEFAULT allotment.clock()
);

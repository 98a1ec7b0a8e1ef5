-- Teams, people, their roles, sessions, idempotency keys and the audit log.

CREATE TABLE teams (
    id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT team_name_taken UNIQUE,
    parent_id uuid REFERENCES teams (id),
    -- One of twelve colours, given when the team is made and kept.
    hue smallint NOT NULL CONSTRAINT team_hue CHECK (hue BETWEEN 1 AND 12),
    -- The team's place in the numeric range of Unix users; the same on all nodes.
    unix_slot integer NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT team_unix_slot UNIQUE,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT team_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    CONSTRAINT team_not_own_parent CHECK (parent_id IS DISTINCT FROM id)
);
CREATE INDEX teams_by_parent ON teams (parent_id);

CREATE TABLE users (
    id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT user_name_taken UNIQUE,
    display_name text NOT NULL DEFAULT '',
    platform_role text CONSTRAINT user_platform_role CHECK (platform_role IN ('admin', 'operator', 'finance', 'auditor')),
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT user_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$')
);

-- Only the system role reads or writes these two.
CREATE TABLE credentials (
    user_id uuid PRIMARY KEY REFERENCES users (id),
    password_hash text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT allotment.clock()
);

CREATE TABLE sessions (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users (id),
    -- `page`: a browser's cookie; `token`: a bearer token.
    kind text NOT NULL CONSTRAINT session_kind CHECK (kind IN ('page', 'token')),
    -- SHA-256 of the secret, which is random and therefore needs no slow hash.
    secret_hash bytea NOT NULL CONSTRAINT session_secret UNIQUE,
    csrf_token text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    last_used_at timestamptz NOT NULL DEFAULT allotment.clock(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
CREATE INDEX sessions_by_user ON sessions (user_id);

CREATE TABLE memberships (
    team_id uuid NOT NULL REFERENCES teams (id),
    user_id uuid NOT NULL REFERENCES users (id),
    role text NOT NULL CONSTRAINT membership_role CHECK (role IN ('viewer', 'member', 'owner')),
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    PRIMARY KEY (team_id, user_id)
);
CREATE INDEX memberships_by_user ON memberships (user_id);

-- What a request with this key was answered; written in the transaction that did the work.
CREATE TABLE idempotency_keys (
    principal uuid NOT NULL,
    route text NOT NULL,
    -- SHA-256 of the key, and of the key with the body: a body may hold a password.
    key text NOT NULL CONSTRAINT idempotency_key_length CHECK (length(key) = 64),
    body_hash bytea NOT NULL,
    status smallint,
    response jsonb,
    etag text,
    created_at timestamptz NOT NULL DEFAULT allotment.clock(),
    PRIMARY KEY (principal, route, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT allotment.clock(),
    actor_kind text NOT NULL CONSTRAINT audit_actor_kind CHECK (actor_kind IN ('user', 'scheduler', 'agent', 'system')),
    actor_id uuid,
    actor_name text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    team_id uuid,
    request_id uuid,
    outcome text NOT NULL CONSTRAINT audit_outcome CHECK (outcome IN ('done', 'denied')),
    reason text NOT NULL DEFAULT '',
    before jsonb,
    after jsonb
);
CREATE INDEX audit_by_object ON audit (object, id);
CREATE INDEX audit_by_team ON audit (team_id, id);
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION allotment.refuse_change();

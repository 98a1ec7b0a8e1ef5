-- Since when devices are as they are, what was found of them, and what persons have cleared.

-- What was found is numbered by its node: `finding` is the newest that is not cleared there, `cleared` up to
-- which a person has said that it is dealt with.
ALTER TABLE devices
    ADD COLUMN health_at timestamptz NOT NULL DEFAULT allotment.clock(),
    ADD COLUMN finding bigint CONSTRAINT device_finding CHECK (finding > 0),
    ADD COLUMN cleared bigint NOT NULL DEFAULT 0;
CREATE INDEX devices_cleared ON devices (node_id) WHERE finding <= cleared;

-- Since when people want of a node what they want: starts that it refused before count for nothing.
ALTER TABLE nodes ADD COLUMN intent_at timestamptz NOT NULL DEFAULT allotment.clock();
CREATE INDEX events_of_refusals ON events (node_id, at)
    WHERE subject = 'assignment' AND reason = 'start_refused' AND to_state IN ('released', 'cleaning');

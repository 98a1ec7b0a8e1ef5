-- Since when devices are as they are, what was found of them, and what persons have cleared.

-- What was found is numbered by its node and told with its words, so that it outlives the node's disk: `finding`
-- is the newest that is not cleared there, `cleared` up to which a person has said that it is dealt with.
-- `failed_at` is the moment at which it failed, as its node tells: nobody pays for it from then on. Of a reason,
-- `health_detail` is what those alone see who run the platform: it names processes.
ALTER TABLE devices
    ADD COLUMN health_at timestamptz NOT NULL DEFAULT allotment.clock(),
    ADD COLUMN health_detail text NOT NULL DEFAULT '',
    ADD COLUMN failed_at timestamptz,
    ADD COLUMN findings jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN finding bigint CONSTRAINT device_finding CHECK (finding > 0),
    ADD COLUMN cleared bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT device_findings CHECK ((finding IS NULL) = (jsonb_array_length(findings) = 0));
CREATE INDEX devices_found ON devices (node_id) WHERE finding IS NOT NULL;

-- Since when people want of a node what they want: starts that it refused before count for nothing.
ALTER TABLE nodes ADD COLUMN intent_at timestamptz NOT NULL DEFAULT allotment.clock();
CREATE INDEX events_of_refusals ON events (node_id, at)
    WHERE subject = 'assignment' AND reason = 'start_refused' AND to_state IN ('released', 'cleaning');

-- What nodes tell of themselves besides: how a layout will cut a device, which walls between jobs they lack, and by
-- how much their clock is off.

-- How the device's node is about to cut it by a layout ({"mig": bool, "profiles": [names]}); null where nothing is to be
-- changed. Nothing of the device is given out until then.
ALTER TABLE devices ADD COLUMN layout jsonb;

ALTER TABLE nodes
    -- The walls between jobs that it lacks, by the words of domain::wall.
    ADD COLUMN lacks text[] NOT NULL DEFAULT '{}'
        CONSTRAINT node_lacks CHECK (lacks <@ ARRAY['users', 'device_files', 'temporary_files', 'process_list']),
    -- By how much its clock is ahead of the servers', or behind them where it is negative; null while it is right.
    ADD COLUMN clock_ahead_ms bigint;

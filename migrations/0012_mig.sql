-- How devices are cut by MIG, and which instance a share is.

-- The instances of a device by start (profile, start and size in memory slices) as its node reports
-- them; null while it is not in MIG mode.
ALTER TABLE devices ADD COLUMN mig jsonb;

-- The profile of a share that is an instance; its slots are the memory slices.
ALTER TABLE assignment_devices
    ADD COLUMN mig_profile text,
    ADD CONSTRAINT share_profile CHECK ((mode = 'mig') = (mig_profile IS NOT NULL)),
    ADD CONSTRAINT share_slices CHECK (mode <> 'mig' OR slots <@ int4range(0, 8));

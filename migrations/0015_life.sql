-- What a node is in for some time: emptied by a deadline, out of room on its disk, cut as it stays.

ALTER TABLE nodes
    -- Until when running work may stay on a node that is being emptied; null lets what may be preempted
    -- leave at once, and the rest end by itself.
    ADD COLUMN drain_deadline_at timestamptz
        CONSTRAINT node_deadline_of_drain CHECK (drain_deadline_at IS NULL OR intent = 'draining'),
    -- Whether its devices stay cut as they are: no instance is made there for work, and none unmade.
    ADD COLUMN mig_static boolean NOT NULL DEFAULT false,
    -- What its agent said when its disk was full: what was free, and what a start needs; null while there is room.
    ADD COLUMN disk_free_mib bigint CONSTRAINT node_disk_free CHECK (disk_free_mib >= 0),
    ADD COLUMN disk_needed_mib bigint,
    -- Since when its disk is full or has room: starts that it refused before count for nothing.
    ADD COLUMN disk_at timestamptz NOT NULL DEFAULT allotment.clock(),
    ADD CONSTRAINT node_disk_figures CHECK ((disk_free_mib IS NULL) = (disk_needed_mib IS NULL));

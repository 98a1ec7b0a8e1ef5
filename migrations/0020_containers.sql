-- Jobs that run as containers: which image each worker had, so that a name that is given to another image later does
-- not change what was run. Its walls are those of its table.

ALTER TABLE assignments ADD COLUMN image_digest text CHECK (char_length(image_digest) BETWEEN 1 AND 255);

#!/bin/sh
# Makes the role that owns the database: it may make roles, and is no superuser. PostgreSQL's
# image runs this once, on an empty data folder.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$ALLOTMENT_OWNER_PASSWORD" -U postgres -d postgres <<'SQL'
CREATE ROLE allotment LOGIN CREATEROLE PASSWORD :'password';
CREATE DATABASE allotment OWNER allotment;
SQL

//! What a node reports, checked on receipt by the server.

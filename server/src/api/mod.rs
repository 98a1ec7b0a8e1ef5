//! REST under /api/v1: handlers read the request, call `app`, and write the answer.

//! The peer: PostgreSQL's COPY of rows of the same columns into a table without walls, partitions or past minutes.

use std::time::{Duration, Instant};

use sqlx::PgPool;

/// Copies so many rows in one transaction.
pub async fn copy(owner: &PgPool, rows: usize) -> anyhow::Result<Duration> {
    let table = "CREATE TABLE IF NOT EXISTS plain (LIKE samples);
        CREATE INDEX IF NOT EXISTS plain_by_device ON plain (device_id, at) WHERE job_id IS NULL;
        CREATE INDEX IF NOT EXISTS plain_by_job ON plain (job_id, at) WHERE job_id IS NOT NULL; TRUNCATE plain";
    sqlx::raw_sql(table).execute(owner).await?;
    let mut text = String::new();
    for row in 0..rows {
        let device = uuid::Uuid::from_u128((row / 2) as u128);
        let (seconds, job) = (row % 60, uuid::Uuid::from_u128((row / 16) as u128));
        let work = match row % 2 {
            0 => "\\N\t\\N\t\\N".to_owned(),
            _ => format!("{job}\t{job}\t{job}"),
        };
        text += &format!(
            "2026-01-05 08:00:{seconds:02}+00\t{device}\t{work}\t812\t640\t480\t320\t61440\t61\t512000\t7680000\t1\n"
        );
    }
    let begun = Instant::now();
    let mut connection = owner.acquire().await?;
    let mut copy = connection.copy_in_raw("COPY plain FROM STDIN").await?;
    copy.send(text.into_bytes()).await?;
    copy.finish().await?;
    Ok(begun.elapsed())
}

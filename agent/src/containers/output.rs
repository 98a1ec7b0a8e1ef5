//! What a container writes, on its way from the runtime to the job's log.

use std::pin::Pin;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::{Stream, StreamExt as _};

use crate::logs::writer::BoundedLog;

/// What the runtime passes on, piece by piece.
type Pieces = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// The log of a container with the stream that fills it.
pub struct Output {
    log: BoundedLog,
    stream: Option<Pieces>,
}

impl Output {
    /// A log that nothing fills yet.
    pub fn new(log: BoundedLog) -> Self {
        Self { log, stream: None }
    }

    /// Attaches to a container that has not begun, so that its first word is not missed.
    pub async fn attach(&mut self, docker: &Docker, id: &str) -> Result<(), Error> {
        let options = AttachContainerOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .stream(true)
            .build();
        let attached = docker.attach_container(id, Some(options)).await?;
        self.stream = Some(attached.output);
        Ok(())
    }

    /// Moves some of what it wrote to the log. Never returns where nothing is to come any more, so that
    /// who waits for several things waits for the others.
    pub async fn pass(&mut self) {
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        match stream.next().await {
            Some(Ok(piece)) => self.log.append(&piece.into_bytes()),
            Some(Err(error)) => {
                self.stream = None;
                self.say(&format!("output is lost from here on: {error}"));
            }
            None => self.stream = None,
        }
    }

    /// Whether more may come.
    pub fn open(&self) -> bool {
        self.stream.is_some()
    }

    /// Tells the job's owner something in its log, which is where he looks.
    pub fn say(&mut self, text: &str) {
        let line = format!("[allotment: {}]\n", text.replace(['\n', '\r'], " "));
        self.log.append(line.as_bytes());
    }

    /// Says at the end how much is missing.
    pub fn close(&mut self) {
        self.log.close();
    }
}

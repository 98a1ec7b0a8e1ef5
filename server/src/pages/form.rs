//! The submit form: from its fields to a job's spec, and from a job's spec to its fields.

mod typed;

use std::collections::BTreeMap;

use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use domain::spec::{Array, CLASS_DEFAULT, JobSpec, PerWorker, Retries, RetryOn, Runner};
use domain::{FieldError, MilliCpu, MilliGpu, Timestamp};
use rust_decimal::Decimal;
use serde::Deserialize;
use web::views::SubmitForm;

use super::words;
pub(super) use typed::minutes;
use typed::{MIB_PER_GIB, MOMENTS, SECONDS_PER_MINUTE, gibibytes, moment, plain, read, within};

/// The form as the browser sends it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitFields {
    /// The team that the job is for.
    pub team: String,
    /// Makes a second press of the button the same submission.
    #[serde(default)]
    pub idempotency_key: String,
    /// Whether only a check was asked for, which browsers without scripts do by a button.
    #[serde(default)]
    pub check: String,
    /// A change that was pressed, as `FIELD=VALUE`, several joined by `&`.
    #[serde(default)]
    change: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    class: String,
    #[serde(default)]
    pool: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    workers: String,
    #[serde(default)]
    min_workers: String,
    #[serde(default)]
    gpus: String,
    #[serde(default)]
    mig_profile: String,
    #[serde(default)]
    cpus: String,
    #[serde(default)]
    memory_gib: String,
    #[serde(default)]
    gpu_memory_gib: String,
    #[serde(default)]
    share: String,
    #[serde(default)]
    time_limit_minutes: String,
    #[serde(default)]
    checkpoint_minutes: String,
    #[serde(default)]
    retries: String,
    #[serde(default)]
    preemptible: String,
    #[serde(default)]
    not_before: String,
    #[serde(default)]
    after: String,
    #[serde(default)]
    retry_on: String,
    #[serde(default)]
    array_count: String,
    #[serde(default)]
    array_at_most: String,
    #[serde(default)]
    env: String,
    #[serde(default)]
    file_name: String,
    #[serde(default)]
    file_text: String,
}

impl SubmitFields {
    /// Makes the change that was pressed, if one was; says whether.
    pub fn take_change(&mut self) -> bool {
        let change = std::mem::take(&mut self.change);
        for (field, value) in change.split('&').filter_map(|pair| pair.split_once('=')) {
            match field {
                "workers" => self.workers = value.to_owned(),
                "min_workers" => self.min_workers = value.to_owned(),
                "gpus" => self.gpus = value.to_owned(),
                "mig_profile" => self.mig_profile = value.to_owned(),
                "time_limit_minutes" => self.time_limit_minutes = value.to_owned(),
                "preemptible" => self.preemptible = value.to_owned(),
                _ => {}
            }
        }
        !change.is_empty()
    }

    /// The fields as the page shows them again.
    pub fn shown(&self) -> SubmitForm {
        SubmitForm {
            name: self.name.clone(),
            kind: self.kind.clone(),
            class: self.class.clone(),
            pool: self.pool.clone(),
            command: self.command.clone(),
            workers: self.workers.clone(),
            min_workers: self.min_workers.clone(),
            gpus: self.gpus.clone(),
            mig_profile: self.mig_profile.clone(),
            cpus: self.cpus.clone(),
            memory_gib: self.memory_gib.clone(),
            gpu_memory_gib: self.gpu_memory_gib.clone(),
            share: self.share.clone(),
            time_limit_minutes: self.time_limit_minutes.clone(),
            checkpoint_minutes: self.checkpoint_minutes.clone(),
            retries: self.retries.clone(),
            preemptible: self.preemptible.clone(),
            not_before: self.not_before.clone(),
            after: self.after.clone(),
            retry_on: self.retry_on.clone(),
            array_count: self.array_count.clone(),
            array_at_most: self.array_at_most.clone(),
            env: self.env.clone(),
            file_name: self.file_name.clone(),
            file_text: self.file_text.clone(),
        }
    }

    /// Whether too little is filled in to ask what would happen.
    pub fn sketchy(&self) -> bool {
        self.name.trim().is_empty() || self.command.trim().is_empty()
    }

    /// The spec that the fields say, or every field that says none.
    pub fn spec(&self) -> Result<JobSpec, Vec<FieldError>> {
        let mut faults = Vec::new();
        let mut keep = |fault: FieldError| faults.push(fault);
        let array = self.array().map_err(&mut keep);
        let spec = (
            self.name.trim().parse().map_err(&mut keep),
            self.kind.parse().map_err(&mut keep),
            self.class.parse().map_err(|e| keep(within("class", e))),
            self.pools().map_err(|e| keep(within("pools", e))),
            self.words().map_err(&mut keep),
            read(&self.workers, "workers", "a whole number from 1").map_err(&mut keep),
            self.per_worker()
                .map_err(|errors| errors.into_iter().for_each(&mut keep)),
            self.variables().map_err(&mut keep),
            self.files().map_err(&mut keep),
            minutes(&self.time_limit_minutes, "time_limit_seconds").map_err(&mut keep),
            minutes(&self.checkpoint_minutes, "checkpoint_seconds").map_err(&mut keep),
            self.treated(&mut keep),
        );
        let (
            Ok(name),
            Ok(kind),
            Ok(class),
            Ok(pools),
            Ok(command),
            Ok(workers),
            Ok(per_worker),
            Ok(env),
            Ok(files),
            Ok(time_limit_seconds),
            Ok(checkpoint_seconds),
            Some(treated),
        ) = spec
        else {
            return Err(faults);
        };
        let Ok(array) = array else {
            return Err(faults);
        };
        let spec = JobSpec {
            kind,
            class,
            pools,
            workers: workers.unwrap_or(1),
            per_worker,
            env,
            files,
            time_limit_seconds,
            checkpoint_seconds,
            min_workers: treated.min_workers,
            retries: retries_of(treated.retries.unwrap_or(0), &self.retry_on),
            preemptible: treated.preemptible,
            not_before: treated.not_before,
            after: treated.after,
            array,
            ..bare(name, command)
        };
        match spec.faults() {
            faults if faults.is_empty() => Ok(spec),
            faults => Err(faults),
        }
    }

    /// How it is to be treated; nothing where a field says none, and `keep` has its fault.
    fn treated(&self, mut keep: impl FnMut(FieldError)) -> Option<Treated> {
        let read = (
            read(
                &self.min_workers,
                "min_workers",
                "a whole number from 1, or nothing",
            )
            .map_err(&mut keep),
            read(&self.retries, "retries.limit", "a whole number from 0").map_err(&mut keep),
            read(&self.preemptible, "preemptible", "true, false or nothing").map_err(&mut keep),
            moment(&self.not_before, "not_before").map_err(&mut keep),
        );
        let (Ok(min_workers), Ok(retries), Ok(preemptible), Ok(not_before)) = read else {
            return None;
        };
        Some(Treated {
            min_workers,
            retries,
            preemptible,
            not_before,
            after: self.followed(),
        })
    }

    /// The jobs that it follows: ids between spaces or commas.
    fn followed(&self) -> Vec<String> {
        let ids = self.after.split(|c: char| c.is_whitespace() || c == ',');
        ids.filter(|id| !id.is_empty()).map(str::to_owned).collect()
    }

    /// One element or none says no array; how many run at once is said of an array alone.
    fn array(&self) -> Result<Option<Array>, FieldError> {
        let whole = "a whole number from 1";
        let count = read(&self.array_count, "array.count", whole)?;
        let at_most = read(&self.array_at_most, "array.at_most", whole)?;
        match (count, at_most) {
            (Some(count), at_most) => Ok(Some(Array { count, at_most })),
            (None, None) => Ok(None),
            (None, Some(at_most)) => Err(FieldError::new(
                "array.at_most",
                at_most,
                "nothing, where array.count is not given",
            )),
        }
    }

    fn pools(&self) -> Result<Vec<domain::name::Name>, FieldError> {
        match self.pool.as_str() {
            "" => Ok(Vec::new()),
            name => Ok(vec![name.parse()?]),
        }
    }

    fn words(&self) -> Result<Vec<String>, FieldError> {
        let line = self.command.replace("\r\n", "\n");
        words::split(line.trim())
            .map_err(|error| FieldError::new("command", &self.command, error.to_string()))
    }

    fn per_worker(&self) -> Result<PerWorker, Vec<FieldError>> {
        let mut faults = Vec::new();
        let mut keep = |fault: FieldError| faults.push(fault);
        let profile = Some(self.mig_profile.trim()).filter(|text| !text.is_empty());
        let gpus = match (self.gpus.trim(), profile) {
            // One instance, where only its profile is said.
            ("", Some(_)) => Ok(MilliGpu::whole(1)),
            (text, _) => text
                .parse::<MilliGpu>()
                .map_err(|e| keep(within("per_worker.gpus", e))),
        };
        let cpus = match self.cpus.trim() {
            "" => Ok(MilliCpu::ZERO),
            text => text.parse().map_err(|e| keep(within("per_worker.cpus", e))),
        };
        let memory = gibibytes(&self.memory_gib, "per_worker.memory_mib").map_err(&mut keep);
        let gpu_memory =
            gibibytes(&self.gpu_memory_gib, "per_worker.gpu_memory_mib").map_err(&mut keep);
        let share = match self.share.as_str() {
            "" => Ok(None),
            mode => mode
                .parse::<SharingMode>()
                .map(Some)
                .map_err(|e| keep(within("per_worker.sharing", e))),
        };
        match (gpus, cpus, memory, gpu_memory, share) {
            (Ok(gpus), Ok(cpus), Ok(memory), Ok(gpu_memory_mib), Ok(share)) => Ok(PerWorker {
                gpus: Some(gpus),
                gpu_memory_mib,
                sharing: share.map_or_else(|| fitting(gpus, profile.is_some()), |mode| vec![mode]),
                mig_profile: profile.map(str::to_owned),
                cpus,
                memory_mib: memory.unwrap_or(0),
                ..PerWorker::default()
            }),
            _ => Err(faults),
        }
    }

    fn variables(&self) -> Result<BTreeMap<String, String>, FieldError> {
        let lines = self
            .env
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.trim().is_empty());
        let mut variables = BTreeMap::new();
        for line in lines {
            let Some((name, value)) = line.split_once('=') else {
                return Err(FieldError::new("env", line, "NAME=value, one on each line"));
            };
            let name = name.trim();
            if variables
                .insert(name.to_owned(), value.to_owned())
                .is_some()
            {
                return Err(FieldError::new("env", name, "each variable once"));
            }
        }
        Ok(variables)
    }

    fn files(&self) -> Result<BTreeMap<String, String>, FieldError> {
        match (self.file_name.trim(), self.file_text.is_empty()) {
            ("", true) => Ok(BTreeMap::new()),
            ("", false) => Err(FieldError::new(
                "files",
                "",
                "a name for the file, such as train.py",
            )),
            // Browsers end lines of a text area with CR LF; interpreters want LF.
            (name, _) => Ok([(name.to_owned(), self.file_text.replace("\r\n", "\n"))].into()),
        }
    }
}

/// How a job is to be treated.
struct Treated {
    min_workers: Option<u32>,
    retries: Option<u32>,
    preemptible: Option<bool>,
    not_before: Option<Timestamp>,
    after: Vec<String>,
}

/// The fields that say a spec, for submitting one like it. What the form has no field for is left out.
pub fn fields_of(spec: &JobSpec) -> SubmitForm {
    let amount = |mib: i64| {
        if mib == 0 {
            String::new()
        } else {
            plain(Decimal::from(mib) / Decimal::from(MIB_PER_GIB))
        }
    };
    let in_minutes = |seconds: Option<i64>| {
        seconds.map_or_else(String::new, |s| {
            plain(Decimal::from(s) / Decimal::from(SECONDS_PER_MINUTE))
        })
    };
    let (file_name, file_text) = spec
        .files
        .iter()
        .next()
        .map(|(name, text)| (name.clone(), text.clone()))
        .unwrap_or_default();
    SubmitForm {
        name: spec.name.to_string(),
        kind: spec.kind.as_str().into(),
        class: spec.class.to_string(),
        pool: spec
            .pools
            .first()
            .map(ToString::to_string)
            .unwrap_or_default(),
        command: words::join(&spec.command),
        workers: spec.workers.to_string(),
        min_workers: spec.min_workers.map_or_else(String::new, |n| n.to_string()),
        gpus: spec.per_worker.gpus().to_string(),
        mig_profile: spec.per_worker.mig_profile.clone().unwrap_or_default(),
        cpus: if spec.per_worker.cpus == MilliCpu::ZERO {
            String::new()
        } else {
            spec.per_worker.cpus.to_string()
        },
        memory_gib: amount(spec.per_worker.memory_mib),
        gpu_memory_gib: amount(spec.per_worker.gpu_memory_mib.unwrap_or(0)),
        share: share_of(&spec.per_worker),
        time_limit_minutes: in_minutes(spec.time_limit_seconds),
        checkpoint_minutes: in_minutes(spec.checkpoint_seconds),
        retries: spec.retries.limit.to_string(),
        preemptible: spec.preemptible.map_or_else(String::new, |p| p.to_string()),
        not_before: spec
            .not_before
            .map_or_else(String::new, |at| at.format(MOMENTS[0]).to_string()),
        after: spec.after.join(" "),
        retry_on: retry_on(&spec.retries).to_owned(),
        array_count: spec
            .array
            .map_or_else(String::new, |array| array.count.to_string()),
        array_at_most: spec
            .array
            .and_then(|array| array.at_most)
            .map_or_else(String::new, |most| most.to_string()),
        env: spec
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect(),
        file_name,
        file_text,
    }
}

/// The modes that suit what is asked for: instances of a profile by MIG, whole devices alone, a
/// fraction by whatever shares one.
fn fitting(gpus: MilliGpu, instances: bool) -> Vec<SharingMode> {
    if instances {
        vec![SharingMode::Mig]
    } else if gpus > MilliGpu::ZERO && gpus.milli() < MILLI {
        vec![SharingMode::TimeSlice, SharingMode::Mps]
    } else {
        vec![SharingMode::Exclusive]
    }
}

/// What the form's choice of sharing holds for a worker.
fn share_of(worker: &PerWorker) -> String {
    if worker.sharing == fitting(worker.gpus(), worker.mig_profile.is_some()) {
        return String::new();
    }
    let first = worker.sharing.first();
    first.map_or("", |mode| mode.as_str()).to_owned()
}

fn bare(name: domain::name::JobName, command: Vec<String>) -> JobSpec {
    JobSpec {
        name,
        kind: domain::spec::JobKind::Batch,
        class: CLASS_DEFAULT.parse().expect("a well-formed name"),
        pools: Vec::new(),
        command,
        image: None,
        runner: Runner::Process,
        env: BTreeMap::new(),
        working_directory: None,
        files: BTreeMap::new(),
        workers: 1,
        min_workers: None,
        per_worker: PerWorker::default(),
        selector: BTreeMap::new(),
        topology: domain::spec::Topology::default(),
        nvlink: domain::spec::NvlinkRule::Prefer,
        anti_affinity: None,
        node: None,
        not_before: None,
        after: Vec::new(),
        array: None,
        time_limit_seconds: None,
        predicted_seconds: None,
        preemptible: None,
        checkpoint_seconds: None,
        restart_seconds: domain::spec::RESTART_SECONDS_DEFAULT,
        retries: Retries::default(),
        on_partition: domain::spec::PartitionPolicy::Stop,
        labels: BTreeMap::new(),
    }
}

/// Retries after the ends that the form's choice stands for; without retries after none.
fn retries_of(limit: u32, choice: &str) -> Retries {
    let on = match choice {
        _ if limit == 0 => Vec::new(),
        "time_limit" => vec![RetryOn::TimeLimit],
        "any" => vec![RetryOn::Failure, RetryOn::TimeLimit],
        _ => vec![RetryOn::Failure],
    };
    Retries { limit, on }
}

/// The form's choice for the ends that are tried again.
fn retry_on(retries: &Retries) -> &'static str {
    let has = |end| retries.on.contains(&end);
    match (has(RetryOn::Failure), has(RetryOn::TimeLimit)) {
        (true, true) => "any",
        (false, true) => "time_limit",
        _ => "failure",
    }
}

#[cfg(test)]
mod tests;

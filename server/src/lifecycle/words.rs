//! How a process ended, in words.

use protocol::report::Exited;

/// Says how a process ended, to follow its worker's name: `exited with code 3`.
pub fn exit(exited: &Exited) -> String {
    // The node knows the limit; without its word the cause is told alone.
    if exited.out_of_memory && !exited.message.is_empty() {
        return format!("was {}", exited.message);
    }
    let how = if exited.out_of_memory {
        "was killed: it used more memory than it had asked for".to_owned()
    } else {
        match (exited.code, exited.signal) {
            (_, Some(signal)) => format!("was ended by signal {}", signal_name(signal)),
            (Some(code), None) => format!("exited with code {code}"),
            (None, None) => "ended".to_owned(),
        }
    };
    if exited.message.is_empty() {
        how
    } else {
        format!("{how}: {}", exited.message)
    }
}

/// A signal's number and name as Linux has them on every machine that GPUs are sold in.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return signal.to_string(),
    };
    format!("{signal} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_told_by_what_decided_it() {
        let exited = |code, signal, out_of_memory| Exited {
            code,
            signal,
            out_of_memory,
            asked: false,
            lost: None,
            message: String::new(),
        };
        assert_eq!(exit(&exited(Some(3), None, false)), "exited with code 3");
        assert_eq!(
            exit(&exited(None, Some(11), false)),
            "was ended by signal 11 (SIGSEGV)"
        );
        assert!(exit(&exited(None, Some(9), true)).contains("more memory"));
        let limited = Exited {
            message: "killed for using more than its 512 MiB of memory".into(),
            ..exited(None, Some(9), true)
        };
        assert_eq!(
            exit(&limited),
            "was killed for using more than its 512 MiB of memory"
        );
        assert_eq!(signal_name(64), "64");
    }
}

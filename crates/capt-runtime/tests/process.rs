//! A controller as a real process: its flags, its exit codes and its signals. No API server is needed: one that is away
//! is part of life.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

/// The example is built together with the tests, beside them.
fn controller() -> Result<Command> {
    let tests = std::env::current_exe()?;
    let built = tests.ancestors().nth(2).context("no build directory")?;
    let mut command = Command::new(built.join("examples/minimal"));
    command
        .env_remove("KUBECONFIG")
        .env_remove("RUST_LOG")
        .env("HOME", "/nonexistent");
    Ok(command)
}

/// A kubeconfig for an API server that does not listen.
fn kubeconfig(test: &str) -> Result<String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&directory)?;
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let path = directory.join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, users: [],
        clusters: [{{name: c, cluster: {{server: 'http://{closed}'}}}}],
        contexts: [{{name: c, context: {{cluster: c, user: ''}}}}]}}"
    );
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

fn run(args: &[&str]) -> Result<Output> {
    Ok(controller()?.args(args).output()?)
}

/// Starts and waits for the line that contains `until`. The reader must be kept: without it the process could not log.
fn start(args: &[&str], until: &str) -> Result<(Child, BufReader<ChildStderr>, String)> {
    let mut child = controller()?.args(args).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?);
    let mut line = String::new();
    while !line.contains(until) {
        line.clear();
        ensure!(lines.read_line(&mut line)? > 0, "ended before saying {until:?}");
    }
    Ok((child, lines, line))
}

fn signal(child: &Child, name: &str) -> Result<()> {
    let sent = Command::new("kill")
        .args([format!("-{name}"), child.id().to_string()])
        .status()?;
    ensure!(sent.success(), "kill failed");
    Ok(())
}

#[test]
fn help_is_grouped_and_names_flags_and_variables() -> Result<()> {
    let output = run(&["--help"])?;
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout)?;
    for heading in ["API server:", "Work:", "Leader election:", "Observation:"] {
        assert!(help.contains(heading), "{help}");
    }
    for text in [
        "--watch-filter",
        "CAPT_WATCH_FILTER",
        "--lease-duration",
        "[default: 15s]",
        "RUST_LOG",
        "KUBECONFIG",
    ] {
        assert!(help.contains(text), "no {text} in\n{help}");
    }
    let version = String::from_utf8(run(&["--version"])?.stdout)?;
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    Ok(())
}

#[test]
fn a_start_that_cannot_succeed_ends_with_a_sentence_and_a_code() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let config = kubeconfig("refused")?;
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--no-such-flag"], 2, &["--no-such-flag", "--help"]),
        (&["--lease-duration", "soon"], 2, &["--lease-duration", "such as"]),
        (
            &["--lease-duration", "5s"],
            1,
            &["--renew-deadline", "--lease-duration"],
        ),
        (&["--log-level", "x=loud"], 1, &["--log-level", "such as"]),
        (&["--kubeconfig", "/nowhere"], 1, &["--kubeconfig", "/nowhere"]),
        (&[], 1, &["no API server is configured", "--kubeconfig"]),
        (
            &["--kubeconfig", &config, "--metrics-bind-address", &address],
            1,
            &["in use", "--metrics-bind-address"],
        ),
    ];
    for (args, code, words) in cases {
        let output = run(args)?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {text}");
        for word in *words {
            assert!(text.contains(word), "{args:?}: no {word:?} in {text}");
        }
    }
    Ok(())
}

#[test]
fn a_signal_ends_a_waiting_process_at_once_and_in_order() -> Result<()> {
    let config = kubeconfig("signals")?;
    // Nothing is at work, so it is not waited for. No machine is so slow that it could be taken for that.
    let grace = Duration::from_secs(600);
    for name in ["TERM", "INT"] {
        let args = [
            "--kubeconfig",
            &config,
            "--metrics-bind-address",
            "127.0.0.1:0",
            "--grace-period",
            "10m",
        ];
        let (mut child, _lines, line) = start(&args, "watch failed")?;
        assert!(line.contains("Connection refused"), "{line}");
        signal(&child, name)?;
        let sent = Instant::now();
        assert_eq!(child.wait()?.code(), Some(0), "{name}");
        assert!(sent.elapsed() < grace, "{name}: {:?}", sent.elapsed());
    }
    Ok(())
}

#[test]
fn logs_are_json_when_asked_and_variables_count() -> Result<()> {
    let mut child = controller()?
        .args(["--metrics-bind-address", "127.0.0.1:0"])
        .env("KUBECONFIG", kubeconfig("json")?)
        .env("CAPT_LOG_FORMAT", "json")
        .env("CAPT_NAMESPACE", "team-a")
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    signal(&child, "TERM")?;
    child.wait()?;
    let first: serde_json::Value = serde_json::from_str(&line)?;
    assert_eq!(first["level"], "INFO");
    assert_eq!(first["namespace"], "team-a");
    assert!(
        first["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("starting capt-")),
        "{line}"
    );
    Ok(())
}

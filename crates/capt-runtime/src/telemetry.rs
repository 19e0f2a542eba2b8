//! Logs: text or JSON, on standard error, with a level that can be changed while the process runs.

use std::{
    error::Error,
    fmt::{self, Write},
    io::{IsTerminal, stderr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use tokio::time::Instant;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{Directive, LevelFilter},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// The level of the running process.
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Mutex<String>,
}

/// kube logs the whole answer when it cannot decode one, and the answer may be a Secret. No setting switches that on.
/// (What it says about failed calls is in the errors that controllers log, and in `rest_client_requests_total`.)
const NEVER: &str = "kube_client::client=off";

/// Our own watch loop reports the same errors, but not every few seconds. Can be switched on.
const QUIET: &str = "kube_runtime=error";

/// Sends all logs of the process to standard error. Can be called once. An empty level means info, as for an unset
/// variable.
pub fn init(format: LogFormat, directives: &str) -> anyhow::Result<LogLevel> {
    let directives = if directives.trim().is_empty() {
        "info"
    } else {
        directives
    };
    let filter = parse(directives).context("invalid --log-level (or RUST_LOG)")?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .context("logging was set up already")?;
    log_panics();
    Ok(LogLevel {
        handle,
        current: Mutex::new(directives.trim().to_string()),
    })
}

impl LogLevel {
    /// The directives in force.
    pub fn current(&self) -> String {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the directives; bad ones change nothing.
    pub fn set(&self, directives: &str) -> anyhow::Result<()> {
        let filter = parse(directives)?;
        self.handle.reload(filter).context("logging has ended")?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = directives.trim().to_string();
        tracing::info!(level = directives.trim(), "log level changed");
        Ok(())
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogLevel").field(&self.current()).finish()
    }
}

fn parse(directives: &str) -> anyhow::Result<EnvFilter> {
    let directives = directives.trim();
    anyhow::ensure!(
        !directives.is_empty(),
        "the log level is empty; write a level such as info, or directives such as info,capt_runtime=debug"
    );
    let never: Directive = NEVER.parse()?;
    let unfit = || {
        format!(
            "{directives:?} is not a log level; write error, warn, info, debug or trace, or directives such as info,capt_runtime=debug"
        )
    };
    // The library takes a single word that is no level for the name of a module, and a misspelt level would silence everything.
    let is_clear = |word: &str| word.contains(['=', '[', ']']) || word.trim().parse::<LevelFilter>().is_ok();
    anyhow::ensure!(directives.split(',').all(is_clear), unfit());
    let filter = EnvFilter::builder()
        .parse(format!("{QUIET},{directives}"))
        .with_context(unfit)?;
    Ok(filter.add_directive(never))
}

/// A panic becomes a log line like any other, so that it is found where the logs are collected.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(location, message = panic_text(panic.payload()), "panic");
    }));
}

/// The words of a panic, which are either a literal or a formatted text.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

/// An error with its causes in one line. Some errors repeat their cause in their own text; that is said once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {more}");
        }
        cause = error.source();
    }
    text
}

/// An error of the API client. kube prints a refusal with its whole structure; the message and the code say it all.
pub(crate) fn api_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (HTTP {})", status.message, status.code),
        other => chain(other),
    }
}

/// Keeps an error that repeats every few seconds from filling the log.
#[derive(Debug, Default)]
pub(crate) struct Repeating {
    told: Option<(String, Instant)>,
}

impl Repeating {
    /// An unchanged text is worth saying again after this time.
    const AGAIN: Duration = Duration::from_secs(60);

    /// Whether `text` has not been said lately.
    pub(crate) fn is_news(&mut self, text: &str) -> bool {
        let known = self
            .told
            .as_ref()
            .is_some_and(|(told, at)| told == text && at.elapsed() < Self::AGAIN);
        if !known {
            self.told = Some((text.to_string(), Instant::now()));
        }
        !known
    }

    /// It is over: the next error is news again.
    pub(crate) fn clear(&mut self) {
        self.told = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_accepted() {
        for good in [
            "info",
            "debug",
            "info,capt_runtime=trace",
            "info,[pass{key=a}]=debug",
            " warn ",
            "off",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_bad_level_is_refused_with_an_example() {
        for bad in ["", "  ", "loud", "info,loud", "capt=loud", "info,=x=y"] {
            let text = format!("{:#}", parse(bad).unwrap_err());
            assert!(text.contains("such as"), "{bad}: {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_error_is_told_once_a_minute() {
        let mut repeating = Repeating::default();
        assert!(repeating.is_news("away"));
        assert!(!repeating.is_news("away"));
        assert!(repeating.is_news("forbidden"));
        tokio::time::advance(Repeating::AGAIN).await;
        assert!(repeating.is_news("forbidden"));
        repeating.clear();
        assert!(repeating.is_news("forbidden"));
    }

    #[test]
    fn causes_are_told_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = anyhow::Error::new(refused)
            .context("cannot connect")
            .context("watch failed: cannot connect");
        assert_eq!(chain(&*error), "watch failed: cannot connect: connection refused");
    }

    #[test]
    fn kube_can_be_made_to_talk() {
        assert!(
            parse("info,kube_runtime=debug")
                .unwrap()
                .to_string()
                .contains("kube_runtime=debug")
        );
        assert!(parse("info").unwrap().to_string().contains(QUIET));
    }

    #[test]
    fn no_directive_switches_on_what_may_quote_secrets() {
        for asked in ["trace", "kube_client=trace", "kube_client::client=trace"] {
            let filter = parse(asked).unwrap().to_string();
            assert!(filter.contains(NEVER), "{asked}: {filter}");
            assert!(!filter.contains("kube_client::client=trace"), "{filter}");
        }
    }
}

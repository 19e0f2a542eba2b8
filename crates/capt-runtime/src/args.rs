//! The flags and variables that all controllers share.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args};
use jiff::SignedDuration;

use crate::{client, controller, lease, scope::Scope, telemetry::LogFormat};

/// Flattened into the arguments of every controller.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Kubeconfig file to reach the API server with; without it, the pod's service account is used, or else
    /// ~/.kube/config.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", help_heading = "API server")]
    pub kubeconfig: Option<String>,

    /// Longest time to open a connection to the API server.
    #[arg(long, env = "CAPT_CONNECT_TIMEOUT", default_value = "5s", value_name = "TIME", help_heading = "API server", value_parser = positive)]
    pub connect_timeout: Duration,

    /// Longest time to wait for the first byte of an answer, also of a watch.
    #[arg(long, env = "CAPT_READ_TIMEOUT", default_value = "20s", value_name = "TIME", help_heading = "API server", value_parser = positive)]
    pub read_timeout: Duration,

    /// Longest time for a whole call to the API server; watches stay open.
    #[arg(long, env = "CAPT_CALL_TIMEOUT", default_value = "30s", value_name = "TIME", help_heading = "API server", value_parser = positive)]
    pub call_timeout: Duration,

    /// Only work on objects in this namespace; without it, on all namespaces.
    #[arg(long, env = "CAPT_NAMESPACE", value_name = "NAME", help_heading = "Work", value_parser = namespace)]
    pub namespace: Option<String>,

    /// Only work on objects whose label cluster.x-k8s.io/watch-filter has this value, to divide the work between
    /// several installations.
    #[arg(long, env = "CAPT_WATCH_FILTER", value_name = "VALUE", help_heading = "Work", value_parser = label_value)]
    pub watch_filter: Option<String>,

    /// How many objects are worked on at once.
    #[arg(long, env = "CAPT_CONCURRENCY", default_value_t = 10, value_name = "N", help_heading = "Work", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub concurrency: u16,

    /// Longest time for one pass over an object.
    #[arg(long, env = "CAPT_RECONCILE_TIMEOUT", default_value = "2m", value_name = "TIME", help_heading = "Work", value_parser = positive)]
    pub reconcile_timeout: Duration,

    /// How often every object is looked at even though nothing changed; 0s switches this off.
    #[arg(long, env = "CAPT_RESYNC_PERIOD", default_value = "10h", value_name = "TIME", help_heading = "Work", value_parser = duration)]
    pub resync_period: Duration,

    /// How long running work may take to finish after SIGTERM; keep it below the pod's
    /// terminationGracePeriodSeconds.
    #[arg(long, env = "CAPT_GRACE_PERIOD", default_value = "25s", value_name = "TIME", help_heading = "Work", value_parser = duration)]
    pub grace_period: Duration,

    /// Work only while holding a Lease, so that several replicas can run; switch it off for a single local process.
    #[arg(
        long, env = "CAPT_LEADER_ELECT", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set, value_name = "BOOL", help_heading = "Leader election",
    )]
    pub leader_elect: bool,

    /// Namespace of the Lease; without it, the pod's own, or that of the kubeconfig's context.
    #[arg(long, env = "CAPT_LEADER_ELECT_NAMESPACE", value_name = "NAME", help_heading = "Leader election", value_parser = namespace)]
    pub leader_elect_namespace: Option<String>,

    /// How long a leader that shows no sign of life is respected; a crash stops the work for so long.
    #[arg(long, env = "CAPT_LEASE_DURATION", default_value = "15s", value_name = "TIME", help_heading = "Leader election", value_parser = positive)]
    pub lease_duration: Duration,

    /// How long a leader that cannot renew goes on before it stops; shorter than --lease-duration.
    #[arg(long, env = "CAPT_RENEW_DEADLINE", default_value = "10s", value_name = "TIME", help_heading = "Leader election", value_parser = positive)]
    pub renew_deadline: Duration,

    /// How often the leader renews and the others look; shorter than --renew-deadline.
    #[arg(long, env = "CAPT_RETRY_PERIOD", default_value = "2s", value_name = "TIME", help_heading = "Leader election", value_parser = positive)]
    pub retry_period: Duration,

    /// Address for /metrics, /healthz, /readyz and /loglevel; without an IP, all of the pod's.
    #[arg(long, env = "CAPT_METRICS_BIND_ADDRESS", default_value = ":8080", value_name = "IP:PORT", help_heading = "Observation", value_parser = address)]
    pub metrics_bind_address: SocketAddr,

    /// Serve /metrics by TLS at this address instead, to those alone whom the API server lets get the URL /metrics.
    #[arg(long, env = "CAPT_METRICS_SECURE_BIND_ADDRESS", value_name = "IP:PORT", help_heading = "Observation", value_parser = address)]
    pub metrics_secure_bind_address: Option<SocketAddr>,

    /// Directory with tls.crt and tls.key for that address, read again when they change; without it, a certificate that
    /// nobody knows is made at each start.
    #[arg(
        long,
        env = "CAPT_METRICS_CERT_DIR",
        value_name = "DIR",
        requires = "metrics_secure_bind_address",
        help_heading = "Observation"
    )]
    pub metrics_cert_dir: Option<PathBuf>,

    /// Form of the log lines.
    #[arg(
        long,
        env = "CAPT_LOG_FORMAT",
        default_value = "text",
        value_name = "FORM",
        help_heading = "Observation"
    )]
    pub log_format: LogFormat,

    /// Log level (error, warn, info, debug, trace) or directives such as info,capt_runtime=debug; can be changed at run
    /// time with PUT /loglevel.
    #[arg(
        long,
        env = "RUST_LOG",
        default_value = "info",
        value_name = "LEVEL",
        help_heading = "Observation"
    )]
    pub log_level: String,
}

impl CommonArgs {
    /// Checks what no single flag can: that the times fit together.
    pub fn validate(&self) -> anyhow::Result<()> {
        let shorter = |(name, time): (&str, Duration), (than, limit): (&str, Duration), why: &str| {
            anyhow::ensure!(
                time < limit,
                "--{name} ({time:?}) must be shorter than --{than} ({limit:?}), because {why}; lower --{name} or raise --{than}"
            );
            Ok(())
        };
        shorter(
            ("renew-deadline", self.renew_deadline),
            ("lease-duration", self.lease_duration),
            "a leader must stop before another may start",
        )?;
        shorter(
            ("retry-period", self.retry_period),
            ("renew-deadline", self.renew_deadline),
            "a leader must be able to try more than once",
        )?;
        shorter(
            ("call-timeout", self.call_timeout),
            ("reconcile-timeout", self.reconcile_timeout),
            "one slow call must not use up a whole pass",
        )
    }

    /// The part of the management cluster to work on.
    pub fn scope(&self) -> Scope {
        Scope::new(self.namespace.as_deref(), self.watch_filter.as_deref())
    }

    pub(crate) fn limits(&self) -> client::Limits {
        client::Limits {
            connect: self.connect_timeout,
            response: self.read_timeout,
            call: self.call_timeout,
        }
    }

    /// A renewal that gets no answer must leave time for another within the deadline.
    pub(crate) fn lease_limits(&self) -> client::Limits {
        let half = self.renew_deadline / 2;
        client::Limits {
            connect: self.connect_timeout.min(half),
            response: self.read_timeout.min(half),
            call: self.call_timeout.min(half),
        }
    }

    pub(crate) fn work(&self) -> controller::Settings {
        controller::Settings {
            concurrency: self.concurrency.into(),
            timeout: self.reconcile_timeout,
            resync: self.resync_period,
        }
    }

    pub(crate) fn election(&self, name: &str, default_namespace: &str, identity: &str) -> lease::Settings {
        let namespace = self.leader_elect_namespace.as_deref().filter(|name| !name.is_empty());
        lease::Settings {
            namespace: namespace.unwrap_or(default_namespace).to_string(),
            name: name.to_string(),
            identity: identity.to_string(),
            duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let hint = || "write a number with a unit, such as 500ms, 15s, 2m or 10h".to_string();
    let parsed: SignedDuration = text.parse().map_err(|_| hint())?;
    Duration::try_from(parsed).map_err(|_| "the time must not be negative".to_string())
}

/// A time that is longer than zero, for the controllers' own flags too.
pub fn positive(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    if parsed.is_zero() {
        return Err("the time must be longer than zero".into());
    }
    Ok(parsed)
}

/// A port alone means all addresses, of both families: a cluster may have only one of them.
fn address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') {
        format!("[::]{text}")
    } else {
        text.to_string()
    };
    full.parse().map_err(|_| {
        "write an IP address and a port, such as 10.0.0.1:8080 or [::1]:8080, or a port alone, such as :8080 (health checks need it, so it cannot be switched off)".to_string()
    })
}

/// An empty text means "not set", as a chart renders it.
fn namespace(text: &str) -> Result<String, String> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = text.is_empty()
        || (text.len() <= 63 && text.chars().all(letters) && !text.starts_with('-') && !text.ends_with('-'));
    if good {
        return Ok(text.to_string());
    }
    Err("a namespace has at most 63 lower-case letters, digits and dashes, and no dash at either end".into())
}

fn label_value(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let good =
        text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().next_back());
    if good {
        return Ok(text.to_string());
    }
    Err("a label value has at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        common: CommonArgs,
    }

    fn parse(args: &[&str]) -> Result<CommonArgs, String> {
        Cli::try_parse_from([&["capt"], args].concat())
            .map(|cli| cli.common)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_fit_together() {
        let args = parse(&[]).unwrap();
        args.validate().unwrap();
        assert!(args.leader_elect);
        assert_eq!(args.scope(), Scope::default());
        assert_eq!(args.lease_limits().call, Duration::from_secs(5));
        assert_eq!(args.resync_period, Duration::from_secs(36_000));
    }

    #[test]
    fn every_flag_has_a_sentence_a_heading_and_a_variable() {
        let command = Cli::command();
        for arg in command
            .get_arguments()
            .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
        {
            let id = arg.get_id();
            assert!(arg.get_help().is_some_and(|help| help.to_string().len() > 20), "{id}");
            assert!(arg.get_help_heading().is_some(), "{id}");
            assert!(arg.get_env().is_some(), "{id}");
        }
    }

    #[test]
    fn bad_values_name_the_flag_and_the_way_out() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["--lease-duration", "15"], &["--lease-duration", "15s"]),
            (&["--grace-period=-5s"], &["--grace-period", "negative"]),
            (&["--call-timeout", "0s"], &["--call-timeout", "longer than zero"]),
            (
                &["--metrics-bind-address", "0"],
                &["--metrics-bind-address", "such as :8080"],
            ),
            (&["--namespace", "Team_A"], &["--namespace", "lower-case"]),
            (&["--watch-filter", "a b"], &["--watch-filter", "label value"]),
            (&["--concurrency", "0"], &["--concurrency", "1..=1000"]),
            (&["--log-format", "xml"], &["--log-format", "json"]),
        ];
        for (args, words) in cases {
            let error = parse(args).unwrap_err();
            for word in *words {
                assert!(error.contains(word), "{args:?}: no {word:?} in {error}");
            }
        }
    }

    #[test]
    fn times_that_do_not_fit_are_refused_with_both_flags() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["--renew-deadline", "15s"], &["--renew-deadline", "--lease-duration"]),
            (&["--retry-period", "10s"], &["--retry-period", "--renew-deadline"]),
            (&["--call-timeout", "5m"], &["--call-timeout", "--reconcile-timeout"]),
        ];
        for (args, words) in cases {
            let error = parse(args).unwrap().validate().unwrap_err().to_string();
            for word in *words {
                assert!(error.contains(word), "{args:?}: no {word:?} in {error}");
            }
        }
    }

    #[test]
    fn short_forms_are_understood() {
        let args = parse(&[
            "--metrics-bind-address",
            ":9090",
            "--leader-elect=false",
            "--resync-period",
            "0s",
            "--grace-period",
            "1m30s",
            "--namespace",
            "",
            "--watch-filter",
            "",
        ])
        .unwrap();
        assert_eq!(args.metrics_bind_address, "[::]:9090".parse().unwrap());
        assert!(!args.leader_elect);
        assert_eq!(args.grace_period, Duration::from_secs(90));
        assert_eq!(args.scope(), Scope::default());
        assert!(parse(&["--leader-elect"]).unwrap().leader_elect);
    }
}

//! Why a Secret cannot be used. Names the field and the fix, and never holds a value: positions in lists stand in place of
//! names, because the name of a context or a user is a value too.

use std::fmt;

/// A verdict on a kubeconfig or CA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub(crate) struct Invalid {
    /// The key of the Secret, and the path inside it.
    field: String,
    problem: Problem,
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, problem: Problem) -> Self {
        Self {
            field: field.into(),
            problem,
        }
    }

    /// The same, seen from one level further out.
    pub(crate) fn within(self, outer: &str) -> Self {
        let field = if self.field.is_empty() {
            outer.to_owned()
        } else {
            format!("{outer}: {}", self.field)
        };
        Self { field, ..self }
    }

    /// Whether it is refused because of what its readers would do with it, not because they could not read it.
    pub(crate) fn is_unsafe(&self) -> bool {
        matches!(self.problem, Problem::Unsafe(_))
    }

    #[cfg(test)]
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// What is wrong with a field. Fixed texts, a limit and a position at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    Missing,
    TooLarge {
        limit: usize,
    },
    NotUtf8,
    NotYaml {
        line: u64,
        column: u64,
    },
    WrongType {
        expected: &'static str,
    },
    Unsupported {
        expected: &'static str,
    },
    /// A name that the current context uses is in no entry of the list.
    NotListed,
    /// A name that the current context uses is in several entries of the list: readers disagree about which counts.
    ListedTwice,
    NotHttps,
    NotBase64,
    NotACertificate,
    /// Beside certificates, where everybody who may read them would read it.
    HoldsAPrivateKey,
    /// All of its certificates, or the one that counts.
    Expired,
    NotAPrivateKey,
    /// One half of a client certificate and its key.
    HalfAPair {
        other: &'static str,
    },
    Unsafe(Danger),
    /// A bug in CAPT: what was cut out could not be written down.
    NotRenderable,
}

/// What a reader of the kubeconfig, such as Cluster API in its own pod, would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Danger {
    RunsProgram,
    ReadsFile,
    UsesProxy,
    SkipsVerification,
    CredentialsInUrl,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing or empty, and must be given"),
            Self::TooLarge { limit } => write!(
                f,
                "is larger than {} KiB: leave out what does not belong to this cluster",
                limit / 1024
            ),
            Self::NotUtf8 => f.write_str("is not UTF-8 text: give text, not a binary form"),
            // What goes beyond the parser's limits has no position.
            Self::NotYaml { line: 0, .. } => f.write_str("is not valid YAML, or too deeply nested: simplify it"),
            Self::NotYaml { line, column } => write!(f, "is not valid YAML: correct line {line}, column {column}"),
            Self::WrongType { expected } => write!(f, "must be {expected}"),
            Self::Unsupported { expected } => write!(f, "must be {expected} or be left out"),
            Self::NotListed => {
                f.write_str("has no entry with the name that the current context uses: add it, or correct the name")
            }
            Self::ListedTwice => {
                f.write_str("has more than one entry with the name that the current context uses: keep one of them")
            }
            Self::NotHttps => f.write_str("must be an https URL with a host, such as https://example.com:443"),
            Self::NotBase64 => f.write_str("is not base64: encode the PEM text"),
            Self::NotACertificate => {
                f.write_str("holds no usable certificate: it must be one or more X.509 certificates as PEM")
            }
            Self::HoldsAPrivateKey => {
                f.write_str("holds a private key beside its certificates: it must hold nothing but certificates")
            }
            Self::Expired => f.write_str("has expired: renew the certificate, and let the template write the new one"),
            Self::NotAPrivateKey => f.write_str("holds no usable private key: it must be a private key as PEM"),
            Self::HalfAPair { other } => write!(f, "is there without {other}: give both or neither"),
            Self::Unsafe(danger) => danger.fmt(f),
            Self::NotRenderable => f.write_str("cannot be written down again; this is a bug"),
        }
    }
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunsProgram => {
                "is refused: Cluster API would run a program in its own pod; give a token or a client certificate instead"
            }
            Self::ReadsFile => "is refused: Cluster API would read a file of its own pod; give the contents instead",
            Self::UsesProxy => "is refused: Cluster API would send its requests to this proxy; leave it out",
            Self::SkipsVerification => {
                "is refused: anybody on the way could take the credentials; leave it out and give certificate-authority-data"
            }
            Self::CredentialsInUrl => "is refused: it has credentials in it; put them into the user's entry",
        })
    }
}

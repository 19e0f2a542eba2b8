//! What the Terraform provider says when it fails, in words that help.
//!
//! The provider packs Terraform's output into a gzipped and base64-encoded tail of its message. It is unpacked here, cut to
//! what fits into a condition, and the ends that need another remedy than "read the error" are told apart.

use std::io::Read;

use base64::Engine;
use flate2::read::GzDecoder;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Terraform failed; the provider tries again by itself.
    Failed,
    /// The provider was killed during the first apply and does not know what became of it. It does not try again.
    CreateInterrupted,
    /// Somebody holds the lock of the state, or held it and was killed.
    StateLocked,
}

/// A failure, explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) cause: Cause,
    pub(crate) message: String,
}

const INTERRUPTED: &str = "cannot determine creation result";
/// The words of a plan or apply, and those of the kubernetes backend when `init` already finds the lock.
const LOCKED: [&str; 2] = [
    "Error acquiring the state lock",
    "the state is already locked by another terraform client",
];
const PACKED: &str = "Terraform encountered an error. Summary: ";
const TAIL: &str = ". To see the full error run: echo \"";
/// Terraform's output is kilobytes; what unpacks to more is not worth the memory.
const MAX_UNPACKED: u64 = 256 * 1024;

/// Explains the message of the provider's Synced condition.
pub(crate) fn explain(message: &str) -> Trouble {
    let text = unpack(message);
    let cause = if text.contains(INTERRUPTED) {
        Cause::CreateInterrupted
    } else if LOCKED.iter().any(|sign| text.contains(sign)) {
        Cause::StateLocked
    } else {
        Cause::Failed
    };
    Trouble { cause, message: text }
}

/// What Terraform printed, after what the provider was doing: `cannot apply Terraform configuration: …`.
fn unpack(message: &str) -> String {
    let Some((doing, packed)) = message.split_once(PACKED) else {
        return one_line(message);
    };
    let (summary, tail) = packed.split_once(TAIL).unwrap_or((packed, ""));
    let encoded = tail.split('"').next().unwrap_or_default();
    let output = gunzip(encoded)
        .map(|output| one_line(&output))
        .filter(|output| !output.is_empty());
    // Warnings come first in what Terraform prints, and would leave no room for the error.
    let detail = output.map(|output| match output.find("Error: ") {
        Some(start) => output.get(start..).unwrap_or_default().to_owned(),
        None => output,
    });
    let detail = detail.unwrap_or_else(|| one_line(summary));
    match doing.trim().trim_end_matches(':') {
        "" => detail,
        doing => format!("{doing}: {detail}"),
    }
}

fn gunzip(encoded: &str) -> Option<String> {
    let packed = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    let mut output = Vec::new();
    GzDecoder::new(packed.as_slice())
        .take(MAX_UNPACKED)
        .read_to_end(&mut output)
        .ok()?;
    Some(String::from_utf8_lossy(&output).into_owned())
}

/// Terraform draws boxes and colours; a condition is one line of text.
fn one_line(output: &str) -> String {
    let mut text = String::with_capacity(output.len());
    let mut characters = output.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => drop(characters.by_ref().find(char::is_ascii_alphabetic)),
            '│' | '╷' | '╵' => text.push(' '),
            other if other.is_control() => text.push(' '),
            other => text.push(other),
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn packed(doing: &str, summary: &str, output: &str) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(output.as_bytes()).unwrap();
        let encoded = base64::engine::general_purpose::STANDARD.encode(encoder.finish().unwrap());
        format!("{doing}: {PACKED}{summary}{TAIL}{encoded}\" | base64 -d | gunzip")
    }

    #[test]
    fn the_full_error_is_unpacked_into_one_line() {
        let output = "\u{1b}[31m╷\n│ Warning: deprecated\n╵\n╷\n│ Error: local-exec provisioner error\n│ \n│   Error running command 'x': exit status 1. Output: VpcLimitExceeded\n╵\u{1b}[0m\n";
        let message = packed(
            "create failed: cannot apply Terraform configuration",
            "local-exec provisioner error",
            output,
        );
        assert_eq!(
            explain(&message),
            Trouble {
                cause: Cause::Failed,
                message: "create failed: cannot apply Terraform configuration: Error: local-exec provisioner error \
                          Error running command 'x': exit status 1. Output: VpcLimitExceeded"
                    .into(),
            }
        );
    }

    #[test]
    fn what_cannot_be_unpacked_leaves_the_summary() {
        let message = format!("observe failed: {PACKED}bad module{TAIL}%%%\" | base64 -d | gunzip");
        assert_eq!(explain(&message).message, "observe failed: bad module");
        assert_eq!(
            explain("connect failed:\n cannot get ProviderConfig").message,
            "connect failed: cannot get ProviderConfig"
        );
        assert_eq!(explain("").message, "");
    }

    #[test]
    fn known_ends_are_told_apart() {
        let interrupted = "cannot determine creation result - remove the crossplane.io/external-create-pending annotation if it is safe to proceed";
        assert_eq!(explain(interrupted).cause, Cause::CreateInterrupted);
        let locked = packed(
            "update failed",
            "Error acquiring the state lock",
            "Error: Error acquiring the state lock\n\nLock Info:\n  ID: 1\n",
        );
        assert_eq!(explain(&locked).cause, Cause::StateLocked);
        let at_init = "connect failed: Error loading state: the state is already locked by another terraform client";
        assert_eq!(explain(at_init).cause, Cause::StateLocked);
        assert_eq!(explain("observe failed: no").cause, Cause::Failed);
    }

    #[test]
    fn an_enormous_output_is_cut() {
        let message = packed("x", "y", &"a ".repeat(4 << 20));
        assert!(explain(&message).message.len() <= MAX_UNPACKED as usize + 8);
    }
}

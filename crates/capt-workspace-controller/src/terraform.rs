//! What the Terraform provider says when it fails, in words that help.
//!
//! The provider packs Terraform's output into a gzipped and base64-encoded tail of its message. It is unpacked here, cut to
//! what fits into a condition, and the ends that need another remedy than "read the error" are told apart, by words that
//! the provider, Terraform and the AWS provider really use.

use std::io::Read;

use base64::Engine;
use flate2::read::GzDecoder;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Terraform failed in no way that is known here; the provider tries again by itself.
    Failed,
    /// The provider was killed during the first apply and does not know what became of it. It does not try again.
    CreateInterrupted,
    /// Somebody holds the lock of the state, or held it and was killed.
    StateLocked,
    /// The ProviderConfig that the Workspace names is not there.
    ProviderConfigMissing,
    /// The credentials are not there, or the cloud does not take them.
    CredentialsMissing,
    /// The cloud refuses more of something, or more requests.
    QuotaExceeded,
    /// Something did not become ready in time, or Terraform itself was stopped by the provider's deadline.
    TerraformTimeout,
    /// The module cannot be loaded: no apply of it can succeed.
    InvalidModule,
    /// The Secret that the outputs are to be written to belongs to something else.
    SecretTaken,
}

/// A failure, explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) cause: Cause,
    pub(crate) message: String,
}

impl Trouble {
    /// Whether Terraform could not even begin with what it was given, so that nothing but another configuration helps.
    pub(crate) fn is_in_the_configuration(&self) -> bool {
        let unusable = matches!(
            self.cause,
            Cause::InvalidModule | Cause::ProviderConfigMissing | Cause::CredentialsMissing
        );
        let not_begun = self.message.contains(CONNECTING) && self.cause != Cause::StateLocked;
        unusable || not_begun || IN_WHAT_WAS_GIVEN.iter().any(|words| self.message.contains(words))
    }
}

/// What the provider says of everything that it does before it looks at what there is: it fetches the module and initialises
/// it with the backend.
const CONNECTING: &str = "connect failed: ";

/// A variable that its own module refuses, one of the wrong type, and arguments that Terraform does not know.
const IN_WHAT_WAS_GIVEN: [&str; 3] = [
    "Invalid value for variable",
    "Invalid value for input variable",
    "Failed to parse command-line flags",
];
const INTERRUPTED: &str = "cannot determine creation result";
/// The words of a plan or apply, and those of the kubernetes backend when `init` already finds the lock.
const LOCKED: [&str; 2] = [
    "Error acquiring the state lock",
    "the state is already locked by another terraform client",
];
/// What the provider was doing when it found no ProviderConfig, in its present words and in earlier ones.
const PROVIDER_CONFIG: [&str; 4] = [
    "cannot get provider config",
    "cannot get ProviderConfig",
    "referenced provider config kind",
    "provider config is not set",
];
/// The provider's own words for a ProviderConfig without credentials; then those of AWS for none, wrong and expired ones.
const CREDENTIALS: [&str; 10] = [
    "cannot get credentials",
    "no valid credential sources",
    "No valid credential sources",
    "NoCredentialProviders",
    "failed to refresh cached credentials",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
    "SignatureDoesNotMatch",
    "ExpiredToken",
];
/// The provider's words for a connection secret that another Workspace, or no Workspace at all, has made.
const SECRET_TAKEN: [&str; 2] = [
    "existing secret is not controlled by UID",
    "refusing to modify uncontrolled secret",
];
const TIMED_OUT: [&str; 4] = [
    "timeout while waiting for",
    "timed out waiting",
    "Timed out waiting",
    "context deadline exceeded",
];
/// Steps of the provider before Terraform runs the module: what fails here in a file of the module, is the module's.
const LOADING: [&str; 3] = [
    "cannot initialize Terraform configuration",
    "cannot get remote Terraform module",
    "cannot get Flux Artefact Terraform module",
];
/// Errors of a module to which Terraform gives no line of it.
const UNLOADABLE: [&str; 7] = [
    "Unreadable module directory",
    "Module not found",
    "Failed to download module",
    "does not have a provider named",
    "no available releases match",
    "does not appear to be a git repository",
    "source path error",
];
const PLANNING: &str = "cannot diff (i.e. plan) Terraform configuration";
/// How errors begin that a plan finds in a module whatever the values are. All others may be a value's fault, such as a
/// precondition that is not met.
const WRONG_IN_ANY_PLAN: [&str; 15] = [
    "Unsupported ",
    "Missing ",
    "Extraneous ",
    "Duplicate ",
    "Argument ",
    "Cycle",
    "Reference to undeclared",
    "Invalid reference",
    "Invalid expression",
    "Invalid block",
    "Invalid resource type",
    "Invalid data source",
    "Call to unknown function",
    "No value for required variable",
    "Value for undeclared variable",
];
/// What the provider writes beside the module, from the ProviderConfig.
const PROVIDER_CONFIG_FILE: &str = "crossplane-provider-config.tf";
const PACKED: &str = "Terraform encountered an error. Summary: ";
const TAIL: &str = ". To see the full error run: echo \"";
/// Terraform's output is kilobytes; what unpacks to more is not worth the memory.
const MAX_UNPACKED: u64 = 256 * 1024;

/// Explains the message of the provider's Synced condition.
pub(crate) fn explain(message: &str) -> Trouble {
    let text = unpack(message);
    Trouble {
        cause: cause(&text),
        message: text,
    }
}

fn cause(text: &str) -> Cause {
    let has = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    if text.contains(INTERRUPTED) {
        Cause::CreateInterrupted
    } else if has(&LOCKED) {
        Cause::StateLocked
    } else if has(&PROVIDER_CONFIG) {
        Cause::ProviderConfigMissing
    } else if has(&SECRET_TAKEN) {
        Cause::SecretTaken
    } else if is_invalid_module(text) {
        // Before what follows: Terraform quotes the module, in which any of those words may stand.
        Cause::InvalidModule
    } else if has(&CREDENTIALS) {
        Cause::CredentialsMissing
    } else if is_over_quota(text) {
        Cause::QuotaExceeded
    } else if has(&TIMED_OUT) {
        Cause::TerraformTimeout
    } else {
        Cause::Failed
    }
}

/// Whether the module itself is at fault, and no value or cloud.
fn is_invalid_module(text: &str) -> bool {
    let error = text.split_once("Error: ").map_or(text, |(_, error)| error);
    if text.contains(PLANNING) {
        return WRONG_IN_ANY_PLAN.iter().any(|beginning| error.starts_with(beginning));
    }
    LOADING.iter().any(|step| text.contains(step))
        && (points_into_the_module(error) || UNLOADABLE.iter().any(|sign| text.contains(sign)))
}

/// Terraform says where an error is: `Missing expression on main.tf line 1, in output "a"`.
fn points_into_the_module(error: &str) -> bool {
    let place = error.split_once(" on ").and_then(|(_, rest)| rest.split_once(" line "));
    place.is_some_and(|(file, _)| (file.ends_with(".tf") || file.ends_with(".tf.json")) && file != PROVIDER_CONFIG_FILE)
}

/// AWS's codes for quotas and throttling have no common list, but common endings.
fn is_over_quota(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| {
        let code = word.strip_suffix("Exception").unwrap_or(word);
        code.ends_with("LimitExceeded")
            || code.ends_with("QuotaExceeded")
            || matches!(
                code,
                "Throttling" | "Throttled" | "TooManyRequests" | "RequestThrottled"
            )
    }) || text.contains("Rate exceeded")
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
    fn what_was_given_is_at_fault_when_terraform_has_not_begun() {
        let in_the_configuration = |message: &str| explain(message).is_in_the_configuration();
        for message in [
            "connect failed: cannot get remote Terraform module: error downloading: couldn't find remote ref v9",
            "connect failed: cannot initialize Terraform configuration: Backend configuration changed",
            "delete failed: cannot destroy Terraform configuration: Error: Failed to parse command-line flags",
            "observe failed: cannot diff (i.e. plan) Terraform configuration: Error: Invalid value for variable",
        ] {
            assert!(in_the_configuration(message), "{message}");
        }
        for message in [
            "connect failed: cannot initialize Terraform configuration: the state is already locked by another terraform client",
            "delete failed: cannot destroy Terraform configuration: Error: DependencyViolation",
        ] {
            assert!(!in_the_configuration(message), "{message}");
        }
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
                cause: Cause::QuotaExceeded,
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

    /// As provider-terraform 1.1.1 with Terraform 1.5.7 really says it, shortened.
    #[test]
    fn real_texts_are_recognised() {
        let init = "connect failed: cannot initialize Terraform configuration";
        let plan = "observe failed: cannot diff (i.e. plan) Terraform configuration";
        let apply = "create failed: cannot apply Terraform configuration";
        let exec = "Error: local-exec provisioner error\n\n  with terraform_data.x,\n  on main.tf line 2, in resource \"terraform_data\" \"x\":\n   2:  provisioner \"local-exec\" { command = \"x\" }\n\nError running command 'x': exit status 1. Output: ";
        let broken = "There are some problems with the CLI configuration:\n╷\n│ Warning: Unable to open CLI configuration file\n╵\n\nTerraform encountered problems during initialisation, including problems\nwith the configuration, described below.\n\n";
        let rows = [
            ("connect failed: failed to resolve provider config: cannot get provider config: ProviderConfig.tf.upbound.io \"missing\" not found".into(), Cause::ProviderConfigMissing),
            ("connect failed: cannot get credentials: cannot get credentials secret: Secret \"gone\" not found".into(), Cause::CredentialsMissing),
            ("cannot create or update connection secret: existing secret is not controlled by UID \"0b9c\"".into(), Cause::SecretTaken),
            ("cannot create or update connection secret: refusing to modify uncontrolled secret of type \"Opaque\"".into(), Cause::SecretTaken),
            ("connect failed: cannot get credentials: open /nowhere/creds: no such file or directory".into(), Cause::CredentialsMissing),
            (packed(init, "", "Error: error configuring S3 Backend: no valid credential sources for S3 Backend found.\n\nError: NoCredentialProviders: no valid providers in chain. Deprecated.\n"), Cause::CredentialsMissing),
            (packed(plan, "", "Error: configuring Terraform AWS Provider: validating provider credentials: operation error STS: GetCallerIdentity, https response error StatusCode: 403, api error InvalidClientTokenId: The security token included in the request is invalid.\n\n  with provider[\"registry.terraform.io/hashicorp/aws\"],\n  on crossplane-provider-config.tf line 5, in provider \"aws\":\n"), Cause::CredentialsMissing),
            (packed(apply, "", &format!("{exec}VpcLimitExceeded: The maximum number of\nVPCs has been reached.\n")), Cause::QuotaExceeded),
            (packed(apply, "", &format!("{exec}ThrottlingException: Rate exceeded")), Cause::QuotaExceeded),
            (packed(apply, "", "Error: creating EKS Cluster (demo): ResourceLimitExceededException: You have reached the limit\n\n  with aws_eks_cluster.this,\n  on main.tf line 3, in resource \"aws_eks_cluster\" \"this\":\n"), Cause::QuotaExceeded),
            (packed(apply, "", "Error: waiting for EKS Cluster (demo) to create: timeout while waiting for\nstate to become 'ACTIVE' (last state: 'CREATING', timeout: 30m0s)\n\n  with aws_eks_cluster.this,\n  on main.tf line 3, in resource \"aws_eks_cluster\" \"this\":\n"), Cause::TerraformTimeout),
            ("create failed: cannot apply Terraform configuration: shutdown while running terraform command: context deadline exceeded".into(), Cause::TerraformTimeout),
            (packed(init, "", &format!("{broken}Error: Missing expression\n\n  on main.tf line 1, in output \"a\":\n   1: output \"a\" {{ value = \n\nExpected the start of an expression, but found the end of the file.\n")), Cause::InvalidModule),
            (packed(init, "", &format!("{broken}Error: Unclosed object\n\n  on main.tf.json line 1:\n   1: {{\"output\": \n\nNo closing brace was found for this JSON object.\n")), Cause::InvalidModule),
            (packed(init, "", "Error: Unreadable module directory\n\nUnable to evaluate directory symlink: lstat nothing: no such file or\ndirectory\n"), Cause::InvalidModule),
            (packed(init, "", "Error: Unsupported Terraform Core version\n\n  on main.tf line 1, in terraform:\n"), Cause::InvalidModule),
            (packed(plan, "", "Error: Unsupported argument\n\n  on main.tf line 1, in resource \"terraform_data\" \"x\":\n   1: resource \"terraform_data\" \"x\" { nonsense = \"timeout while waiting for\" }\n"), Cause::InvalidModule),
            (packed(plan, "", "Error: Reference to undeclared input variable\n\n  on main.tf line 1, in output \"a\":\n"), Cause::InvalidModule),
            (packed(plan, "", "Error: No value for required variable\n\n  on main.tf line 1:\n   1: variable \"needed\" { type = string }\n"), Cause::InvalidModule),
            (packed(plan, "", "Error: Value for undeclared variable\n\nA variable named \"unknown\" was assigned on the command line, but the root\nmodule does not declare a variable of that name.\n"), Cause::InvalidModule),
            ("connect failed: cannot get remote Terraform module: error downloading 'file:///nowhere': /usr/bin/git exited with 128: fatal: '/nowhere' does not appear to be a git repository".into(), Cause::InvalidModule),
            (packed(plan, "", "Error: Cycle: local.b (expand), local.a (expand)\n"), Cause::InvalidModule),
            // What looks alike and is something else.
            (packed(plan, "", "Error: Resource precondition failed\n\n  on main.tf line 17, in resource \"terraform_data\" \"check\":\n  17:       condition     = var.colour != \"red\"\n\nRed is sold out.\n"), Cause::Failed),
            (packed(plan, "", "Error: Invalid value for variable\n\n  on main.tf line 1:\n   1: variable \"v\" {\n\nv must be y.\n"), Cause::Failed),
            (packed(init, "", "Error: Unsupported backend type\n\n  on crossplane-provider-config.tf line 2, in terraform:\n   2:  backend \"nothing\" {}\n"), Cause::Failed),
            (packed(init, "", "Error: Failed to query available provider packages\n\nCould not retrieve the list of available versions for provider hashicorp/aws:\ncould not connect to registry.terraform.io: failed to request discovery\ndocument: dial tcp: lookup registry.terraform.io: no such host\n"), Cause::Failed),
            (packed(apply, "", &format!("{exec}subnet in use")), Cause::Failed),
            (packed(apply, "", "Error: creating EC2 VPC: UnauthorizedOperation: You are not authorized\n\n  with aws_vpc.this,\n  on main.tf line 1, in resource \"aws_vpc\" \"this\":\n"), Cause::Failed),
        ];
        for (message, cause) in rows {
            let explained = explain(&message);
            assert_eq!(explained.cause, cause, "{}", explained.message);
        }
    }

    #[test]
    fn an_enormous_output_is_cut() {
        let message = packed("x", "y", &"a ".repeat(4 << 20));
        assert!(explain(&message).message.len() <= MAX_UNPACKED as usize + 8);
    }
}

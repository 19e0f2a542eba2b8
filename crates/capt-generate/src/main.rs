//! capt-generate: writes every file of this repository that is made from its code, or with `--check` fails when one of
//! them is not as the code has it.

mod crds;
mod output;
mod roles;
mod schema;
mod states;
mod values;

use std::path::Path;

use anyhow::{Context, bail};

use crate::output::Output;

/// Makes files from the code and from what else the repository holds.
type Generator = fn(repository: &Path) -> anyhow::Result<Vec<Output>>;

/// Everything that is generated.
const GENERATORS: &[(&str, Generator)] = &[
    ("CRDs", crds::files),
    ("roles", roles::files),
    ("states", states::files),
    ("values", values::files),
];

fn main() -> anyhow::Result<()> {
    let check = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("usage: capt-generate [--check]"),
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut differing = Vec::new();
    for (what, generate) in GENERATORS {
        let outputs = generate(&repository).with_context(|| format!("cannot generate the {what}"))?;
        for output in outputs {
            if check {
                differing.extend(output.differing(&repository)?);
            } else {
                output.write(&repository)?;
            }
        }
    }
    if !differing.is_empty() {
        bail!("not as the code has it: {}; run `make generate`", differing.join(", "));
    }
    Ok(())
}

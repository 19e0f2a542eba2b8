//! Writes CAPT's CRDs into a directory, or checks that they are there as the types have them.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use capt_api::crd;

const USAGE: &str = "usage: crdgen [--check] <directory>";

fn main() -> anyhow::Result<()> {
    let (options, mut paths): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    let check = match options.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--check"] => true,
        _ => bail!("{USAGE}"),
    };
    let (Some(directory), true) = (paths.pop().map(PathBuf::from), paths.is_empty()) else {
        bail!("{USAGE}")
    };

    if check {
        let differing = crd::differing(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
        if !differing.is_empty() {
            bail!(
                "not as the types have them: {}; run `cargo run -p capt-api --bin crdgen -- {}`",
                differing.join(", "),
                directory.display()
            );
        }
        return Ok(());
    }
    for crd in crd::all() {
        let path = directory.join(crd::file_name(&crd));
        std::fs::write(&path, crd::yaml(&crd)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

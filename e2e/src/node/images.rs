//! Images on the node: the one that holds a pod together, and those that are brought by hand in place of a registry.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::namespaces::run;
use super::parts::{PAUSE, socket};
use crate::environment::Environment;
use crate::manifests;
use crate::progress::Step;
use crate::tools::Toolbox;

/// Where containerd keeps what is the kubelet's.
const KUBELETS: &str = "k8s.io";

/// Brings the image that holds a pod together, which it makes the first time.
pub async fn pause(environment: &Environment, tools: &Toolbox) -> Result<()> {
    let archive = environment.cache().join("pause.tar");
    if !archive.exists() {
        let step = Step::start("build the image that holds a pod together");
        build_pause(&archive).await?;
        step.done();
    }
    import(environment, tools, &archive).await
}

/// A program that does nothing: the first process of a pod keeps its namespaces while containers come and go.
async fn build_pause(archive: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let path = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    fs::write(
        path("pause.c"),
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )?;
    fs::write(
        path("Dockerfile"),
        "FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n",
    )?;
    run("cc", &["-static", "-O2", "-s", "-o", &path("pause"), &path("pause.c")])
        .await
        .context("a C compiler with the static C library is needed: on Debian, apt-get install gcc libc6-dev")?;
    let (storage, runroot) = (path("storage"), path("run"));
    let buildah = ["--storage-driver", "vfs", "--root", &storage, "--runroot", &runroot];
    let (context, unfinished) = (path("."), path("pause.tar"));
    let build = ["bud", "--isolation", "chroot", "--quiet", "--tag", PAUSE, &context];
    run("buildah", &[&buildah[..], &build].concat()).await?;
    let target = format!("oci-archive:{unfinished}:{PAUSE}");
    run(
        "buildah",
        &[&buildah[..], &["push", "--quiet", PAUSE, &target]].concat(),
    )
    .await?;
    // Renamed when whole; a copy first, because the scratch directory may be on another disk.
    let beside = archive.with_extension("new");
    fs::copy(&unfinished, &beside)?;
    Ok(fs::rename(&beside, archive)?)
}

/// Brings every archive of a directory, as `make images` writes them, and returns how many there were.
pub async fn import_all(environment: &Environment, tools: &Toolbox, directory: &Path) -> Result<usize> {
    let archives: Vec<PathBuf> = manifests::files_ending(directory, "tar").unwrap_or_default();
    if archives.is_empty() {
        bail!("there are no images in {}: run `make images`", directory.display());
    }
    let step = Step::start(format!("bring {} images to the node", archives.len()));
    for archive in &archives {
        import(environment, tools, archive).await?;
    }
    step.done();
    Ok(archives.len())
}

async fn import(environment: &Environment, tools: &Toolbox, archive: &Path) -> Result<()> {
    ctr(environment, tools, &["images", "import", &archive.to_string_lossy()])
        .await
        .with_context(|| format!("cannot import {}", archive.display()))
}

/// Gives an image that is there another name.
pub async fn tag(environment: &Environment, tools: &Toolbox, image: &str, name: &str) -> Result<()> {
    ctr(environment, tools, &["images", "tag", "--force", image, name]).await
}

async fn ctr(environment: &Environment, tools: &Toolbox, arguments: &[&str]) -> Result<()> {
    let (program, socket) = (tools.program("ctr")?.to_string_lossy(), socket(environment));
    let socket = socket.to_string_lossy();
    run(
        &program,
        &[&["--address", &socket, "--namespace", KUBELETS], arguments].concat(),
    )
    .await
}

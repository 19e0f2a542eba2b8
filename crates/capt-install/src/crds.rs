//! The CRDs of this release: installed, upgraded, never downgraded unasked.

use anyhow::{Context, bail};
use capt_api::crd;
use capt_api::names::annotation;
use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::{conditions::is_crd_established, wait::await_condition};
use kube::{Api, Client, ResourceExt};
use semver::Version;

use crate::guard;
use crate::refusals::outwait;

const MANAGER: &str = "capt-install";

#[derive(clap::Args, Debug)]
pub(crate) struct ApplyArgs {
    /// Also replace CRDs of a newer release. Fields that only the newer one knows are lost from the objects.
    #[arg(long)]
    allow_downgrade: bool,
}

/// What to do with a CRD that is there, or not.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Install,
    /// Of the same release, of an older one, or of none that is known: by the Go version, or by hand.
    Replace,
    Downgrade(Version),
    Leave(Version),
}

/// Brings the CRDs to this release and returns when the API server serves them.
pub(crate) async fn apply(client: &Client, args: &ApplyArgs) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let release = Version::parse(capt_runtime::app::VERSION).context("the version of this program is no version")?;
    let mut names = Vec::new();
    for wanted in crd::all() {
        let name = wanted.name_any();
        let live = outwait(async || api.get_opt(&name).await)
            .await
            .with_context(|| format!("cannot read {name}"))?;
        match judge(live.as_ref(), &release, args.allow_downgrade) {
            Verdict::Leave(newer) => println!(
                "{name}: left as it is: it is of {newer}, newer than {release}. The older controllers work with it; \
                 --allow-downgrade would lose what only {newer} stores"
            ),
            verdict => {
                // The whole CRD is ours, whoever installed it before.
                let params = PatchParams::apply(MANAGER).force();
                outwait(async || api.patch(&name, &params, &Patch::Apply(&wanted)).await)
                    .await
                    .with_context(|| format!("cannot apply {name}"))?;
                match verdict {
                    Verdict::Downgrade(newer) => println!("{name}: downgraded from {newer} to {release}"),
                    Verdict::Install => println!("{name}: installed, {release}"),
                    _ => println!("{name}: {release}"),
                }
            }
        }
        names.push(name);
    }
    try_join_all(
        names
            .iter()
            .map(|name| await_condition(api.clone(), name, is_crd_established())),
    )
    .await
    .context("a CRD is not served")?;
    Ok(())
}

fn judge(live: Option<&CustomResourceDefinition>, release: &Version, allow_downgrade: bool) -> Verdict {
    let Some(live) = live else {
        return Verdict::Install;
    };
    let version = live.annotations().get(annotation::CAPT_VERSION);
    match version.and_then(|text| Version::parse(text).ok()) {
        Some(newer) if newer > *release && allow_downgrade => Verdict::Downgrade(newer),
        Some(newer) if newer > *release => Verdict::Leave(newer),
        _ => Verdict::Replace,
    }
}

/// Deletes the CRDs with all objects of their kinds. An object that waits for a finalizer would keep its CRD for ever, so
/// the guard has a last word, on all namespaces: another installation may have objects of its own.
pub(crate) async fn delete(client: &Client) -> anyhow::Result<()> {
    guard::guard(client, &guard::Args::default()).await?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in crd::all().iter().map(ResourceExt::name_any) {
        match outwait(async || api.delete(&name, &DeleteParams::background()).await).await {
            Ok(_) => println!("{name}: deleted"),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => bail!(anyhow::Error::new(error).context(format!("cannot delete {name}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_release(version: Option<&str>) -> CustomResourceDefinition {
        let mut crd = crd::all().remove(0);
        crd.metadata.annotations = version.map(|version| {
            let entry = (annotation::CAPT_VERSION.to_owned(), version.to_owned());
            [entry].into_iter().collect()
        });
        crd
    }

    #[test]
    fn a_newer_crd_is_left_unless_asked_for() {
        let release = Version::new(0, 9, 0);
        let verdict = |live: Option<&str>, allow| judge(Some(&of_release(live)), &release, allow);
        let newer = Version::new(0, 10, 0);
        assert_eq!(judge(None, &release, false), Verdict::Install);
        assert_eq!(verdict(None, false), Verdict::Replace);
        assert_eq!(verdict(Some("not a version"), false), Verdict::Replace);
        assert_eq!(verdict(Some("0.8.9"), false), Verdict::Replace);
        assert_eq!(verdict(Some("0.9.0"), false), Verdict::Replace);
        // Before 0.9.0, as releases are ordered.
        assert_eq!(verdict(Some("0.9.0-rc.1"), false), Verdict::Replace);
        assert_eq!(verdict(Some("0.10.0"), false), Verdict::Leave(newer.clone()));
        assert_eq!(verdict(Some("0.10.0"), true), Verdict::Downgrade(newer));
    }

    #[test]
    fn every_crd_says_its_release() {
        for crd in crd::all() {
            let version = crd.annotations().get(annotation::CAPT_VERSION).map(String::as_str);
            assert_eq!(version, Some(capt_runtime::app::VERSION), "{}", crd.name_any());
        }
    }
}

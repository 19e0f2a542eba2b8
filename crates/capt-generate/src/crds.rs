//! `crds/`: the CRDs, from the types of capt-api.

use std::path::Path;

use anyhow::Result;
use capt_api::crd;

use crate::output::Output;

pub(crate) fn files(_repository: &Path) -> Result<Vec<Output>> {
    let files = crd::all()
        .into_iter()
        .map(|crd| Ok((crd::file_name(&crd), crd::yaml(&crd)?)));
    Ok(vec![Output::Directory {
        path: "crds".into(),
        files: files.collect::<Result<_>>()?,
    }])
}

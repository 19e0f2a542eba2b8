//! The contents of Secrets: what a source yields, what a copy is to hold, and whether a copy is good.
//!
//! The only module, with those that check kubeconfigs and certificates, that looks at values. Verdicts leave it, and the
//! bodies of writes.

use std::collections::BTreeMap;

use capt_api::names::{output, secret};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::certificate;
use crate::copies::Which;
use crate::invalid::{Invalid, Problem};
use crate::kubeconfig::{Kubeconfig, Rules};

/// What is handed on. No `Debug`: it holds credentials.
pub(crate) struct Material {
    kubeconfig: Vec<u8>,
    authority: Vec<u8>,
    expires: Option<Timestamp>,
}

impl Material {
    /// What a connection Secret yields. The error names the field, never a value.
    pub(crate) fn of_source(source: &Secret, rules: Rules) -> Result<Self, Invalid> {
        let key = |key: &'static str| value(source, key).ok_or_else(|| Invalid::new(key, Problem::Missing));
        let kubeconfig = key(output::KUBECONFIG)?;
        let authority = key(output::CLUSTER_CERTIFICATE_AUTHORITY_DATA)?;
        let kubeconfig = Kubeconfig::read(kubeconfig, rules).map_err(|error| error.within(output::KUBECONFIG))?;
        let (authority, expires) = certificate::authority(authority, rules.now)
            .map_err(|error| error.within(output::CLUSTER_CERTIFICATE_AUTHORITY_DATA))?;
        Ok(Self {
            expires: certificate::earlier(expires, kubeconfig.expires()),
            kubeconfig: kubeconfig.into_bytes(),
            authority,
        })
    }

    /// When the first certificate in it expires.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    /// The whole data of a copy.
    pub(crate) fn data(&self, which: Which) -> BTreeMap<String, ByteString> {
        let value = match which {
            Which::Kubeconfig | Which::Alias => &self.kubeconfig,
            Which::Ca => &self.authority,
        };
        BTreeMap::from([(data_key(which).to_owned(), ByteString(value.clone()))])
    }
}

/// Whether the source holds nothing at all, as the provider leaves it until Terraform has outputs.
pub(crate) fn is_empty(source: &Secret) -> bool {
    source
        .data
        .as_ref()
        .is_none_or(|data| data.values().all(|value| value.0.is_empty()))
}

/// Until when a copy can be used as it stands; `None` when it cannot be.
pub(crate) fn usable(copy: &Secret, which: Which, rules: Rules) -> Option<Option<Timestamp>> {
    let data = value(copy, data_key(which))?;
    match which {
        Which::Kubeconfig | Which::Alias => Some(Kubeconfig::read(data, rules).ok()?.expires()),
        Which::Ca => certificate::usable_authority(data, rules.now).ok(),
    }
}

/// What stands between a copy and its material.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Difference {
    None,
    /// Other data, which a patch can replace.
    Data,
    /// What a Secret never changes: its type, or data that somebody declared immutable.
    Fixed,
}

pub(crate) fn difference(copy: &Secret, which: Which, material: &Material) -> Difference {
    if copy.type_.as_deref() != Some(secret::CLUSTER_TYPE) {
        return Difference::Fixed;
    }
    let same = copy.data.as_ref() == Some(&material.data(which));
    match (same, copy.immutable) {
        (true, _) => Difference::None,
        (false, Some(true)) => Difference::Fixed,
        (false, _) => Difference::Data,
    }
}

fn data_key(which: Which) -> &'static str {
    match which {
        Which::Kubeconfig | Which::Alias => secret::KUBECONFIG_KEY,
        Which::Ca => secret::CA_KEY,
    }
}

fn value<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    let value = secret.data.as_ref()?.get(key)?;
    (!value.0.is_empty()).then_some(&value.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::Trust;
    use crate::samples;

    const DATA_ONLY: Trust = Trust::DataOnly;

    fn is_good(copy: &Secret, which: Which) -> bool {
        usable(copy, which, samples::rules(DATA_ONLY)).is_some()
    }

    fn source(entries: &[(&str, String)]) -> Secret {
        let data = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.clone().into_bytes())));
        Secret {
            data: Some(data.collect()),
            ..Secret::default()
        }
    }

    fn kubeconfig() -> (&'static str, String) {
        ("kubeconfig", samples::yaml(&samples::kubeconfig("t")))
    }

    fn authority() -> (&'static str, String) {
        (
            "cluster_certificate_authority_data",
            samples::base64(&samples::authority()),
        )
    }

    fn error(entries: &[(&str, String)]) -> String {
        Material::of_source(&source(entries), samples::rules(DATA_ONLY))
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn both_required_keys_and_no_others_decide() {
        let role = ("pod_execution_role_arn", "arn".to_owned());
        assert!(Material::of_source(&source(&[kubeconfig(), authority(), role]), samples::rules(DATA_ONLY)).is_ok());
        assert_eq!(
            error(&[authority()]),
            "kubeconfig is missing or empty, and must be given"
        );
        assert_eq!(
            error(&[kubeconfig()]),
            "cluster_certificate_authority_data is missing or empty, and must be given"
        );
        assert_eq!(
            error(&[("kubeconfig", String::new()), authority()]),
            "kubeconfig is missing or empty, and must be given"
        );
        assert_eq!(
            error(&[("kubeconfig", "{}".into()), authority()]),
            "kubeconfig: current-context is missing or empty, and must be given"
        );
        assert_eq!(
            error(&[("kubeconfig", "a: [".into()), authority()]),
            "kubeconfig is not valid YAML: correct line 1, column 4"
        );
        assert_eq!(
            error(&[kubeconfig(), ("cluster_certificate_authority_data", "!".into())]),
            "cluster_certificate_authority_data is not base64: encode the PEM text"
        );
    }

    #[test]
    fn a_copy_is_good_or_different_or_beyond_repair() {
        let material = Material::of_source(&source(&[kubeconfig(), authority()]), samples::rules(DATA_ONLY))
            .ok()
            .unwrap();
        for which in Which::ALL {
            let mut copy = Secret {
                type_: Some("cluster.x-k8s.io/secret".into()),
                data: Some(material.data(which)),
                ..Secret::default()
            };
            assert_eq!(difference(&copy, which, &material), Difference::None);
            assert!(is_good(&copy, which));

            copy.data
                .as_mut()
                .unwrap()
                .insert("added".into(), ByteString(b"x".to_vec()));
            assert_eq!(difference(&copy, which, &material), Difference::Data, "a key too many");
            assert!(is_good(&copy, which));

            copy.immutable = Some(true);
            assert_eq!(difference(&copy, which, &material), Difference::Fixed, "immutable");

            copy.data = Some(BTreeMap::from([(
                data_key(which).to_owned(),
                ByteString(b"garbage".to_vec()),
            )]));
            assert!(!is_good(&copy, which));

            copy.type_ = Some("Opaque".into());
            copy.data = Some(material.data(which));
            assert_eq!(difference(&copy, which, &material), Difference::Fixed, "another type");
        }
    }

    #[test]
    fn a_source_before_the_first_apply_is_empty() {
        assert!(is_empty(&Secret::default()));
        assert!(is_empty(&source(&[("kubeconfig", String::new())])));
        assert!(!is_empty(&source(&[("other", "x".into())])));
    }
}

//! Certificates and keys as PEM: can the TLS library use them?

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::invalid::{Invalid, Problem};

/// A chain of authorities is a few KiB; more is not one.
const MAX_AUTHORITY: usize = 64 * 1024;
const PEM_BEGIN: &str = "-----BEGIN ";

/// The PEM in what EKS calls `certificate_authority_data`: base64 of PEM, or PEM itself.
pub(crate) fn authority(data: &[u8]) -> Result<Vec<u8>, Invalid> {
    let invalid = |problem| Invalid::new("", problem);
    if data.len() > MAX_AUTHORITY {
        return Err(invalid(Problem::TooLarge { limit: MAX_AUTHORITY }));
    }
    let text = std::str::from_utf8(data).map_err(|_| invalid(Problem::NotUtf8))?;
    if text.trim().is_empty() {
        return Err(invalid(Problem::Missing));
    }
    let pem = if text.contains(PEM_BEGIN) {
        data.to_vec()
    } else {
        // Templates wrap long lines, and outputs end in one.
        let compact: String = text.split_ascii_whitespace().collect();
        STANDARD.decode(compact).map_err(|_| invalid(Problem::NotBase64))?
    };
    usable_authority(&pem).map_err(invalid)?;
    Ok(pem)
}

/// At least one certificate that can anchor trust: what Cluster API's own TLS library asks for, which passes over others.
pub(crate) fn usable_authority(pem: &[u8]) -> Result<(), Problem> {
    let mut anchors = RootCertStore::empty();
    let (usable, _) = anchors.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    if usable == 0 {
        return Err(Problem::NotACertificate);
    }
    Ok(())
}

pub(crate) fn usable_client_certificate(pem: &[u8]) -> Result<(), Problem> {
    // The form is the same; whether the API server trusts it is for the API server to say.
    usable_authority(pem)
}

pub(crate) fn usable_private_key(pem: &[u8]) -> Result<(), Problem> {
    PrivateKeyDer::from_pem_slice(pem)
        .map(drop)
        .map_err(|_| Problem::NotAPrivateKey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn both_forms_of_an_authority_give_its_pem() {
        let pem = samples::authority();
        let base64 = STANDARD.encode(&pem);
        let wrapped: Vec<String> = base64
            .as_bytes()
            .chunks(64)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
        for given in [pem.clone(), base64.clone(), format!("{base64}\n"), wrapped.join("\n")] {
            assert!(
                authority(given.as_bytes()) == Ok(pem.clone().into_bytes()),
                "{} bytes",
                given.len()
            );
        }
    }

    #[test]
    fn several_authorities_and_text_between_them_are_one_bundle() {
        let bundle = format!("# first\n{}\n# second\n{}", samples::authority(), samples::authority());
        assert!(authority(bundle.as_bytes()).is_ok());
    }

    #[test]
    fn what_no_client_could_use_is_refused() {
        let key = samples::client().1;
        let broken = "-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n";
        for (given, problem) in [
            (Vec::new(), Problem::Missing),
            (b" \n".to_vec(), Problem::Missing),
            (b"not base64!".to_vec(), Problem::NotBase64),
            (STANDARD.encode("no PEM inside").into_bytes(), Problem::NotACertificate),
            (STANDARD.encode([0xff, 0xfe]).into_bytes(), Problem::NotACertificate),
            (broken.as_bytes().to_vec(), Problem::NotACertificate),
            (key.into_bytes(), Problem::NotACertificate),
            (vec![0xff, 0xfe], Problem::NotUtf8),
            (
                vec![b'a'; MAX_AUTHORITY + 1],
                Problem::TooLarge { limit: MAX_AUTHORITY },
            ),
        ] {
            assert_eq!(
                authority(&given).map_err(|error| error.problem().clone()).map(drop),
                Err(problem)
            );
        }
    }

    #[test]
    fn client_certificates_and_keys_are_told_apart() {
        let (certificate, key) = samples::client();
        assert_eq!(usable_client_certificate(certificate.as_bytes()), Ok(()));
        assert_eq!(usable_client_certificate(key.as_bytes()), Err(Problem::NotACertificate));
        assert_eq!(usable_private_key(key.as_bytes()), Ok(()));
        assert_eq!(usable_private_key(certificate.as_bytes()), Err(Problem::NotAPrivateKey));
    }
}

//! Certificates and keys as PEM: can the TLS library use them, and until when?

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::civil::DateTime;
use jiff::{Timestamp, tz::TimeZone};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::invalid::{Invalid, Problem};

/// A chain of authorities is a few KiB; more is not one.
const MAX_AUTHORITY: usize = 64 * 1024;
const PEM_BEGIN: &str = "-----BEGIN ";
/// How the first line of every kind of private key ends.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// The PEM in what EKS calls `certificate_authority_data` (base64 of PEM, or PEM itself), and when it expires.
pub(crate) fn authority(data: &[u8], now: Timestamp) -> Result<(Vec<u8>, Option<Timestamp>), Invalid> {
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
    let expires = usable_authority(&pem, now).map_err(invalid)?;
    Ok((pem, expires))
}

/// At least one certificate that can anchor trust: what Cluster API's own TLS library asks for, which passes over others.
/// A bundle lasts as long as its last certificate.
pub(crate) fn usable_authority(pem: &[u8], now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    let certificates = anchors(pem)?;
    if String::from_utf8_lossy(pem).contains(PRIVATE_KEY) {
        return Err(Problem::HoldsAPrivateKey);
    }
    let expiries = certificates.iter().map(|certificate| expiry(certificate));
    let last = expiries.max_by_key(|expiry| expiry.unwrap_or(Timestamp::MAX));
    not_expired(last.flatten(), now)
}

/// A client's certificate, with or without those that vouch for it. Whether the API server trusts it is for the API
/// server to say.
pub(crate) fn usable_client_certificate(pem: &[u8], now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    // The client's own comes first.
    let own = anchors(pem)?.into_iter().next();
    not_expired(own.as_ref().and_then(|certificate| expiry(certificate)), now)
}

/// A private key, which never expires.
pub(crate) fn usable_private_key(pem: &[u8]) -> Result<Option<Timestamp>, Problem> {
    PrivateKeyDer::from_pem_slice(pem)
        .map(|_| None)
        .map_err(|_| Problem::NotAPrivateKey)
}

/// The first of two times at which something ends; `None` is never.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

/// The certificates that the TLS library can read.
fn anchors(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let is_usable = |certificate: &CertificateDer<'static>| RootCertStore::empty().add(certificate.clone()).is_ok();
    let usable: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .flatten()
        .filter(is_usable)
        .collect();
    if usable.is_empty() {
        return Err(Problem::NotACertificate);
    }
    Ok(usable)
}

fn not_expired(expiry: Option<Timestamp>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    match expiry {
        Some(expiry) if expiry <= now => Err(Problem::Expired),
        other => Ok(other),
    }
}

/// The end of a certificate's validity; `None` when it is too far off to be told, or cannot be read (which is for the
/// TLS library to complain about). Only the way to that one field is walked: the library that reads all of X.509 would
/// be the largest dependency here.
fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    const VERSION: u8 = 0xa0;
    let (_, certificate, _) = element(certificate)?;
    let (_, to_be_signed, _) = element(certificate)?;
    let (tag, _, after_first) = element(to_be_signed)?;
    // The version may be left out; serial number, algorithm and issuer follow.
    let mut rest = if tag == VERSION { after_first } else { to_be_signed };
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, not_after) = element(validity)?;
    let (tag, text, _) = element(not_after)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// One element of DER: its tag, its contents, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    const LONG: u8 = 0x80;
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = if *first < LONG {
        (usize::from(*first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(*first ^ LONG))?;
        // More than four bytes of length are no certificate.
        let length = digits.iter().try_fold(0u32, |length, digit| {
            length.checked_mul(256).map(|length| length | u32::from(*digit))
        })?;
        (usize::try_from(length).ok()?, rest)
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((*tag, contents, rest))
}

/// A time as X.509 writes it: with two digits of the year, or with four.
fn time(tag: u8, text: &str) -> Option<Timestamp> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let century = match (tag, text.get(..2)?.parse::<u8>().ok()?) {
        (UTC_TIME, 50..) => "19",
        (UTC_TIME, _) => "20",
        (GENERALIZED_TIME, _) => "",
        _ => return None,
    };
    let civil = DateTime::strptime("%Y%m%d%H%M%SZ", format!("{century}{text}")).ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
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
            let read = authority(given.as_bytes(), samples::now()).map(|(pem, _)| pem);
            assert!(read == Ok(pem.clone().into_bytes()), "{} bytes", given.len());
        }
    }

    #[test]
    fn several_authorities_and_text_between_them_are_one_bundle() {
        let bundle = format!("# first\n{}\n# second\n{}", samples::authority(), samples::authority());
        assert!(authority(bundle.as_bytes(), samples::now()).is_ok());
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
            (
                format!("{}{key}", samples::authority()).into_bytes(),
                Problem::HoldsAPrivateKey,
            ),
            (key.into_bytes(), Problem::NotACertificate),
            (vec![0xff, 0xfe], Problem::NotUtf8),
            (
                vec![b'a'; MAX_AUTHORITY + 1],
                Problem::TooLarge { limit: MAX_AUTHORITY },
            ),
        ] {
            assert_eq!(
                authority(&given, samples::now())
                    .map_err(|error| error.problem().clone())
                    .map(drop),
                Err(problem)
            );
        }
    }

    #[test]
    fn client_certificates_and_keys_are_told_apart() {
        let (certificate, key) = samples::client();
        let client = |pem: &str| usable_client_certificate(pem.as_bytes(), samples::now()).map(drop);
        assert_eq!(client(&certificate), Ok(()));
        assert_eq!(client(&key), Err(Problem::NotACertificate));
        assert_eq!(usable_private_key(key.as_bytes()), Ok(None));
        assert_eq!(usable_private_key(certificate.as_bytes()), Err(Problem::NotAPrivateKey));
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_certificate_ends_at_its_second() {
        let pem = samples::ending(2030);
        let end = at("2030-01-01T00:00:00Z");
        let before = end - jiff::SignedDuration::from_secs(1);
        for check in [usable_authority, usable_client_certificate] {
            assert_eq!(check(pem.as_bytes(), before), Ok(Some(end)));
            assert_eq!(check(pem.as_bytes(), end), Err(Problem::Expired));
        }
        // Years from 2050 on are written in another way.
        let late = samples::ending(2050);
        assert_eq!(
            usable_authority(late.as_bytes(), end),
            Ok(Some(at("2050-01-01T00:00:00Z")))
        );
    }

    #[test]
    fn a_bundle_lasts_as_long_as_its_last_certificate_and_a_client_as_long_as_its_first() {
        let bundle = format!("{}{}", samples::ending(2030), samples::ending(2040));
        let (first, last) = (at("2030-01-01T00:00:00Z"), at("2040-01-01T00:00:00Z"));
        assert_eq!(usable_authority(bundle.as_bytes(), first), Ok(Some(last)));
        assert_eq!(usable_authority(bundle.as_bytes(), last), Err(Problem::Expired));
        assert_eq!(
            usable_client_certificate(bundle.as_bytes(), first),
            Err(Problem::Expired)
        );
    }

    #[test]
    fn times_of_both_sorts() {
        for (tag, text, expected) in [
            (0x17, "491231235959Z", Some("2049-12-31T23:59:59Z")),
            (0x17, "500101000000Z", Some("1950-01-01T00:00:00Z")),
            (0x18, "20500101000000Z", Some("2050-01-01T00:00:00Z")),
            // "Never": later than any clock here goes.
            (0x18, "99991231235959Z", None),
            (0x17, "4912312359Z", None),
            (0x17, "491331235959Z", None),
            (0x18, "", None),
            (0x04, "491231235959Z", None),
        ] {
            assert_eq!(time(tag, text), expected.map(at), "{text}");
        }
    }

    proptest::proptest! {
        /// Whatever the bytes, the walk ends without a panic; and a certificate that was cut short has no end.
        #[test]
        fn any_bytes_are_walked(der in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..256), cut in 0usize..600) {
            let _ = expiry(&der);
            let whole = CertificateDer::from_pem_slice(samples::authority().as_bytes()).unwrap();
            proptest::prop_assert!(expiry(&whole).is_some());
            let cut = cut.min(whole.len() - 1);
            proptest::prop_assert_eq!(expiry(&whole[..cut]), None);
        }
    }
}
